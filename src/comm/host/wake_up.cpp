// Sleeping and waking over a futex in the shared page.
#include "comm/host/wake_up.h"

#include <climits>

#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

namespace convoy {
namespace {

// The futex system call works on the plain word that the atomic is.
std::uint32_t* word(std::atomic<std::uint32_t>& bell) noexcept {
  static_assert(sizeof(bell) == sizeof(std::uint32_t));
  return reinterpret_cast<std::uint32_t*>(&bell);
}

}  // namespace

void ring(RankBlock& block) noexcept {
  block.bell.fetch_add(1);
  // Not FUTEX_PRIVATE: the sleeper may be another process.
  ::syscall(SYS_futex, word(block.bell), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void ring_if_asleep(RankBlock& block) noexcept {
  if (block.sleeping.load() != 0) ring(block);
}

Sleeper::Sleeper(RankBlock& block) noexcept : block_(block), bell_(block.bell.load()) {
  block_.sleeping.fetch_add(1);
}

Sleeper::~Sleeper() { block_.sleeping.fetch_sub(1); }

void Sleeper::sleep(std::chrono::nanoseconds longest) noexcept {
  if (longest <= std::chrono::nanoseconds::zero()) return;
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(longest);
  const timespec time{static_cast<time_t>(seconds.count()),
                      static_cast<long>((longest - seconds).count())};
  // Returns at once if the bell has changed; a signal or a spurious return is no harm, because
  // callers look again.
  ::syscall(SYS_futex, word(block_.bell), FUTEX_WAIT, bell_, &time, nullptr, 0);
}

}  // namespace convoy
