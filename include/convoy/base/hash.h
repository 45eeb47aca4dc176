// 64-bit hashes (XXH3) for fingerprints and comparisons. Not for security.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

namespace convoy {

/// XXH3-64 of the bytes with seed 0: the same on every machine.
std::uint64_t hash64(const void* data, std::size_t bytes) noexcept;
inline std::uint64_t hash64(std::string_view text) noexcept {
  return hash64(text.data(), text.size());
}

/// The same hash of bytes that come in pieces: how they are cut does not matter. Not thread-safe.
class Hasher64 {
 public:
  Hasher64();
  Hasher64(Hasher64&&) noexcept;
  Hasher64& operator=(Hasher64&&) noexcept;
  ~Hasher64();

  Hasher64& update(const void* data, std::size_t bytes);
  Hasher64& update(std::string_view text) { return update(text.data(), text.size()); }
  /// Of all bytes so far; more may follow.
  std::uint64_t digest() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace convoy
