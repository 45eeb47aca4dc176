// Where whole tensors come from and go to on rank 0: a file or a state dict.
#pragma once

#include "convoy/checkpoint/safetensors.h"
#include "convoy/checkpoint/safetensors_writer.h"

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace convoy::saving {

/// Named whole tensors to read. Thread rule: one thread at a time.
class StateSource {
 public:
  virtual ~StateSource() = default;

  /// For messages: "'DIR/model.safetensors'" or "the state".
  virtual std::string describe() const = 0;
  virtual std::vector<std::string> names() const = 0;
  /// Dtype and sizes; nothing if there is no such tensor.
  virtual std::optional<TensorInfo> find(const std::string& name) const = 0;
  virtual void read(const std::string& name, std::int64_t begin, void* out,
                    std::size_t bytes) const = 0;

  /// A number stored as a tensor of one element. Error: kInvalidArgument if it is not whole.
  std::int64_t read_whole_number(const std::string& name) const;
};

class FileSource final : public StateSource {
 public:
  explicit FileSource(const std::filesystem::path& path) : file_(path) {}

  std::string describe() const override;
  std::vector<std::string> names() const override;
  std::optional<TensorInfo> find(const std::string& name) const override;
  void read(const std::string& name, std::int64_t begin, void* out,
            std::size_t bytes) const override;

 private:
  SafetensorsFile file_;
};

class DictSource final : public StateSource {
 public:
  explicit DictSource(const StateDict& state) : state_(state) {}

  std::string describe() const override { return "the state"; }
  std::vector<std::string> names() const override { return state_.keys(); }
  std::optional<TensorInfo> find(const std::string& name) const override;
  void read(const std::string& name, std::int64_t begin, void* out,
            std::size_t bytes) const override;

 private:
  const StateDict& state_;
};

/// Takes whole tensors, announced before, one after the other. Thread rule: one thread at a time.
class StateSink {
 public:
  virtual ~StateSink() = default;
  /// The next bytes of the tensor `name`.
  virtual void write(const std::string& name, const void* data, std::size_t bytes) = 0;
};

class FileSink final : public StateSink {
 public:
  FileSink(const std::filesystem::path& path, std::vector<TensorInfo> tensors,
           const Metadata& metadata)
      : writer_(path, std::move(tensors), metadata) {}

  void write(const std::string&, const void* data, std::size_t bytes) override {
    writer_.write(data, bytes);
  }
  void finish() { writer_.finish(); }

 private:
  SafetensorsWriter writer_;
};

class DictSink final : public StateSink {
 public:
  explicit DictSink(const std::vector<TensorInfo>& tensors);

  void write(const std::string& name, const void* data, std::size_t bytes) override;
  StateDict take() { return std::move(state_); }

 private:
  StateDict state_;
  std::string at_;
  std::size_t done_ = 0;
};

}  // namespace convoy::saving
