// The shared memory of one group of ranks.
#include "comm/host/host_group.h"

#include "base/rounding.h"
#include "comm/host/memory_units.h"
#include "comm/host/wake_up.h"
#include "convoy/base/trace.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <thread>
#include <utility>

#include <sched.h>
#include <unistd.h>

namespace convoy {
GroupLayout layout_of_group(int size) {
  const auto ranks = static_cast<std::size_t>(size);
  GroupLayout layout{};
  layout.control_bytes = round_up(sizeof(ControlHead) + ranks * sizeof(RankBlock), kPageBytes);
  // 4 MiB a rank, and not much more than 64 MiB in all: chunks should stay in the caches.
  constexpr std::size_t kMost = std::size_t{4} << 20;
  constexpr std::size_t kLeast = std::size_t{256} << 10;
  layout.stage_bytes =
      std::clamp((std::size_t{64} << 20) / ranks / kPageBytes * kPageBytes, kLeast, kMost);
  layout.chunk_bytes = layout.stage_bytes / 8;
  layout.total_bytes = layout.control_bytes + ranks * layout.stage_bytes;
  return layout;
}

HostGroup::HostGroup(std::string name, int rank, int size, std::shared_ptr<Mapping> base)
    : name_(std::move(name)),
      rank_(rank),
      size_(size),
      layout_(layout_of_group(size)),
      base_(std::move(base)) {}

// The pages come zeroed, which is the initial value of every field.
ControlHead& HostGroup::head() const noexcept {
  return *reinterpret_cast<ControlHead*>(base_->data());
}

RankBlock& HostGroup::block(int rank) const noexcept {
  auto* blocks = reinterpret_cast<RankBlock*>(base_->data() + sizeof(ControlHead));
  return blocks[rank];
}

std::byte* HostGroup::stage(int rank) const noexcept {
  return base_->data() + layout_.control_bytes +
         static_cast<std::size_t>(rank) * layout_.stage_bytes;
}

void HostGroup::wake_peers() const noexcept {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) ring_if_asleep(block(r));
  }
}

void HostGroup::wake_own() const noexcept { ring_if_asleep(own()); }

void HostGroup::enter() const noexcept {
  auto& mine = own();
  mine.pid.store(::getpid());
  cpu_set_t set;
  CPU_ZERO(&set);
  if (::sched_getaffinity(0, sizeof set, &set) == 0) {
    for (std::size_t cpu = 0; cpu < mine.cpus.size() * 64 && cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) mine.cpus[cpu / 64].fetch_or(std::uint64_t{1} << (cpu % 64));
    }
  }
  mine.state.store(RankState::kPresent);
}

void HostGroup::leave(bool is_unwinding) const noexcept {
  own().left_ns.store(trace::now_ns());
  own().state.store(is_unwinding ? RankState::kUnwound : RankState::kLeft);
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) ring(block(r));
  }
}

bool HostGroup::has_left(int rank) const noexcept {
  const auto state = block(rank).state.load();
  return state == RankState::kLeft || state == RankState::kUnwound;
}

int HostGroup::processors() const noexcept {
  int count = 0;
  for (std::size_t word = 0; word < block(0).cpus.size(); ++word) {
    std::uint64_t any = 0;
    for (int r = 0; r < size_; ++r) any |= block(r).cpus[word].load();
    count += std::popcount(any);
  }
  return count;
}

bool HostGroup::has_failed() const noexcept {
  return head().error.state.load() != ErrorSlot::State::kEmpty;
}

std::optional<Error> HostGroup::failure() const {
  auto& slot = head().error;
  if (slot.state.load() == ErrorSlot::State::kEmpty) return std::nullopt;
  // The writer needs microseconds, unless it was killed in between.
  const auto patience = std::chrono::steady_clock::now() + std::chrono::milliseconds(300);
  while (slot.state.load() != ErrorSlot::State::kSet) {
    if (std::chrono::steady_clock::now() > patience) {
      return Error(ErrorKind::kPeerLost, "a rank of communicator '" + name_ +
                                             "' ended while it was writing down a failure");
    }
    std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  const auto* text = slot.text.data();
  return Error(static_cast<ErrorKind>(slot.kind),
               std::string(text, ::strnlen(text, kErrorTextBytes)), slot.rank);
}

void HostGroup::fail(const Error& error) const noexcept {
  auto& slot = head().error;
  auto expected = ErrorSlot::State::kEmpty;
  if (!slot.state.compare_exchange_strong(expected, ErrorSlot::State::kBeingWritten)) return;
  slot.kind = static_cast<std::int32_t>(error.kind());
  slot.rank = error.rank();
  std::strncpy(slot.text.data(), error.what(), kErrorTextBytes - 1);
  slot.state.store(ErrorSlot::State::kSet);
  for (int r = 0; r < size_; ++r) ring(block(r));
}

}  // namespace convoy
