// XXH3-64 from the xxHash headers, compiled in here so that no library is linked.
#define XXH_INLINE_ALL
#include "convoy/base/hash.h"

#include <xxhash.h>

namespace convoy {

std::uint64_t hash64(const void* data, std::size_t bytes) noexcept {
  return XXH3_64bits(data, bytes);
}

struct Hasher64::State {
  XXH3_state_t xxh;
};

Hasher64::Hasher64() : state_(std::make_unique<State>()) { XXH3_64bits_reset(&state_->xxh); }
Hasher64::Hasher64(Hasher64&&) noexcept = default;
Hasher64& Hasher64::operator=(Hasher64&&) noexcept = default;
Hasher64::~Hasher64() = default;

Hasher64& Hasher64::update(const void* data, std::size_t bytes) {
  XXH3_64bits_update(&state_->xxh, data, bytes);
  return *this;
}

std::uint64_t Hasher64::digest() const { return XXH3_64bits_digest(&state_->xxh); }

}  // namespace convoy
