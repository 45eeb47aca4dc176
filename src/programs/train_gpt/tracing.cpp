// Parts by rank, and the whole from them.
#include "programs/train_gpt/tracing.h"

#include "convoy/base/check.h"
#include "convoy/profile/chrome_trace.h"

#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace convoy::train_gpt {
namespace {

/// Gives each span to both.
class BothSinks final : public trace::Sink {
 public:
  BothSinks(std::shared_ptr<trace::Sink> first, std::shared_ptr<trace::Sink> second)
      : first_(std::move(first)), second_(std::move(second)) {}
  void record(trace::Event event) override {
    first_->record(event);
    second_->record(std::move(event));
  }

 private:
  std::shared_ptr<trace::Sink> first_;
  std::shared_ptr<trace::Sink> second_;
};

std::string file_for(const std::string& target) {
  std::error_code ignored;
  if (!target.ends_with('/') && !std::filesystem::is_directory(target, ignored)) return target;
  std::filesystem::create_directories(target, ignored);  // Opening the file says what is wrong.
  return (std::filesystem::path(target) / "trace.json").native();
}

}  // namespace

Tracing::Tracing(const std::string& target, int rank, int world)
    : path_(target.empty() ? target : file_for(target)), rank_(rank), world_(world) {
  if (path_.empty()) return;
  std::error_code ignored;
  CONVOY_REQUIRE(
      !std::filesystem::exists(path_, ignored) || std::filesystem::is_regular_file(path_, ignored),
      kInvalidArgument, "cannot write --trace '", path_, "': it is no regular file");
  const std::string part = part_of(rank_);
  const std::ofstream file(part);
  CONVOY_REQUIRE(static_cast<bool>(file), kInvalidArgument, "cannot write --trace '", path_,
                 "': ", std::generic_category().message(errno));
  std::filesystem::remove(part, ignored);
  if (rank_ == 0)
    std::filesystem::remove(path_, ignored);  // Else a run that fails shows another's timeline.
  recorder_ = std::make_shared<profile::TraceRecorder>();
}

std::shared_ptr<trace::Sink> Tracing::beside(std::shared_ptr<trace::Sink> meter) const {
  if (recorder_ == nullptr) return meter;
  return std::make_shared<BothSinks>(std::move(meter), recorder_);
}

std::string Tracing::part_of(int rank) const { return concat(path_, ".rank", rank); }

void Tracing::write_part() const {
  profile::write_chrome_trace(part_of(rank_),
                              {.rank = rank_,
                               .name = concat("rank ", rank_),
                               .note = concat("process ", ::getpid()),
                               .forgotten = recorder_->forgotten()},
                              recorder_->events());
}

void Tracing::save(Communicator& comm) {
  if (recorder_ == nullptr) return;
  write_part();
  comm.barrier({.tag = "trace"})->wait();
  if (rank_ != 0) return;
  std::vector<std::string> parts;
  for (int rank = 0; rank < world_; ++rank) parts.push_back(part_of(rank));
  profile::merge_chrome_traces(parts, path_);
  for (const std::string& part : parts) std::remove(part.c_str());
}

void Tracing::leave_part() noexcept {
  try {
    if (recorder_ != nullptr && !recorder_->events().empty()) write_part();
  } catch (const std::exception&) {
  }
}

}  // namespace convoy::train_gpt
