// Reads and writes the marks of ranks in shared memory.
#include "convoy/control/job_page.h"

#include "convoy/base/check.h"
#include "convoy/base/trace.h"

#include <array>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

namespace convoy {
namespace {

constexpr std::size_t kOperationBytes = 32;
constexpr std::size_t kTagBytes = 64;

// The content of a mark as it lies in memory. Both texts end with a zero byte.
struct RawMark {
  std::uint64_t sequence;
  std::int64_t since_ns;
  std::int32_t pid;
  std::uint32_t phase;
  char operation[kOperationBytes];
  char tag[kTagBytes];
};
constexpr std::size_t kWords = sizeof(RawMark) / sizeof(std::uint64_t);
static_assert(sizeof(RawMark) % sizeof(std::uint64_t) == 0);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

using Words = std::array<std::atomic<std::uint64_t>, kWords>;

std::string text_of(const char* bytes, std::size_t capacity) {
  return std::string(bytes, ::strnlen(bytes, capacity));
}

}  // namespace

// Note [Two copies]: mark number n lies in copies[n % 2], and `count` names the last whole one. The
// writer fills the other copy and then steps `count`, so at every moment, also after a SIGKILL, the
// named copy is whole. A reader that finds `count` unchanged behind its copying was not overtaken.
struct alignas(64) JobPage::Slot {
  std::atomic<std::uint64_t> count;
  std::array<Words, 2> copies;
};

JobPage::JobPage(Fd memory, int world_size)
    : memory_(std::move(memory)),
      world_size_(world_size),
      bytes_(sizeof(Slot) * static_cast<std::size_t>(world_size)) {
  base_ = ::mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED, memory_.get(), 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw_system_error("mapping the job page", errno);
  }
}

JobPage JobPage::create(int world_size) {
  CONVOY_CHECK(world_size > 0);
  // Zero bytes are a valid page: count 0 names a copy that says kAbsent.
  return JobPage(
      make_memory_file("convoy-job", sizeof(Slot) * static_cast<std::size_t>(world_size)),
      world_size);
}

JobPage JobPage::attach(Fd memory, int world_size) {
  CONVOY_REQUIRE(memory && world_size > 0, kProtocol, "the launcher sent no job page");
  struct stat status {};
  if (::fstat(memory.get(), &status) != 0) throw_system_error("looking at the job page", errno);
  const int seals = ::fcntl(memory.get(), F_GET_SEALS);
  const auto bytes = sizeof(Slot) * static_cast<std::size_t>(world_size);
  // Only a file that cannot shrink is safe to touch.
  CONVOY_REQUIRE(
      seals >= 0 && (seals & F_SEAL_SHRINK) != 0 && std::cmp_greater_equal(status.st_size, bytes),
      kProtocol, "the launcher sent a job page of ", status.st_size,
      " bytes that is not sealed or too small for ", world_size, " ranks");
  return JobPage(std::move(memory), world_size);
}

JobPage::JobPage(JobPage&& other) noexcept
    : memory_(std::move(other.memory_)),
      world_size_(other.world_size_),
      base_(std::exchange(other.base_, nullptr)),
      bytes_(other.bytes_) {}

JobPage& JobPage::operator=(JobPage&& other) noexcept {
  std::swap(memory_, other.memory_);
  std::swap(world_size_, other.world_size_);
  std::swap(base_, other.base_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

JobPage::~JobPage() {
  if (base_ != nullptr) ::munmap(base_, bytes_);
}

JobPage::Slot& JobPage::slot(int rank) const noexcept {
  return *std::launder(static_cast<Slot*>(base_) + rank);
}

RankMark JobPage::read(int rank) const {
  CONVOY_CHECK(rank >= 0 && rank < world_size_, "rank ", rank);
  const auto& from = slot(rank);
  RawMark raw{};
  std::uint64_t count = 0;
  // A writer can overtake the reader only by writing two marks during one copy of 128 bytes. Should
  // it do so each time, the last copy is taken: it may mix two marks, both recent.
  for (int attempt = 0; attempt < 1000; ++attempt) {
    count = from.count.load(std::memory_order_acquire);
    std::array<std::uint64_t, kWords> words;
    for (std::size_t i = 0; i < kWords; ++i) {
      words[i] = from.copies[count % 2][i].load(std::memory_order_acquire);
    }
    std::memcpy(&raw, words.data(), sizeof(raw));
    if (from.count.load(std::memory_order_relaxed) == count) break;
  }
  RankMark mark;
  mark.pid = raw.pid;
  mark.phase = raw.phase <= static_cast<std::uint32_t>(RankPhase::kLeft)
                   ? static_cast<RankPhase>(raw.phase)
                   : RankPhase::kAbsent;
  mark.operation = text_of(raw.operation, kOperationBytes);
  mark.sequence = raw.sequence;
  mark.tag = text_of(raw.tag, kTagBytes);
  mark.since_ns = raw.since_ns;
  mark.progress = count;
  return mark;
}

void JobPage::write(int rank, RankPhase phase, std::string_view operation, std::uint64_t sequence,
                    std::string_view tag) noexcept {
  if (rank < 0 || rank >= world_size_) return;
  RawMark raw{};
  raw.sequence = sequence;
  raw.since_ns = trace::now_ns();
  raw.pid = ::getpid();
  raw.phase = static_cast<std::uint32_t>(phase);
  operation.copy(raw.operation, kOperationBytes - 1);
  tag.copy(raw.tag, kTagBytes - 1);
  std::array<std::uint64_t, kWords> words;
  std::memcpy(words.data(), &raw, sizeof(raw));

  auto& to = slot(rank);
  const auto next = to.count.load(std::memory_order_relaxed) + 1;
  for (std::size_t i = 0; i < kWords; ++i) {
    // Release, so that a reader that sees one of these words also sees the step of `count` before
    // it.
    to.copies[next % 2][i].store(words[i], std::memory_order_release);
  }
  to.count.store(next, std::memory_order_release);
}

std::string describe_operation(const RankMark& mark) {
  if (mark.operation.empty()) return "none";
  return concat(mark.operation, " #", mark.sequence, " '", mark.tag, "'");
}

}  // namespace convoy
