// What the memory of this machine allows: all_reduce and all_gather as bare loops over shared
// pages.
//
// Pinned processes, plain loads, adds and stores, barriers that spin, nothing else: no checks, no
// headers, no waiting peers. `collectives` is compared with these figures, measured in the same
// sitting. Three ways of all_reduce are timed, and the best counts: every rank stores its slice of
// the sum into all buffers (past the caches, or through them), or only into its own, from where the
// others copy it. x86 with AVX2 only. Usage: limit_loop [RANKS]
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <span>
#include <vector>

#include <immintrin.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CONVOY_AVX2 __attribute__((target("avx2")))

namespace {

constexpr std::size_t kLargest = std::size_t{256} << 20;
// Not a power of two: AMD's first caches would throw the buffers' lines out in turn.
constexpr std::size_t kDistance = kLargest + 1024;
constexpr int kMostRanks = 64;

struct alignas(64) Arrival {
  std::atomic<long> round;
};

// One rank's view of the shared pages.
struct World {
  int rank;
  int size;
  bool shares_processors;
  std::byte* pages;
  long round = 0;

  float* buffer(int r) const {
    return reinterpret_cast<float*>(pages + kDistance * static_cast<std::size_t>(r));
  }
  Arrival& arrival(int r) const {
    return reinterpret_cast<Arrival*>(pages + kDistance * static_cast<std::size_t>(size))[r];
  }
  void barrier() {
    arrival(rank).round.store(++round, std::memory_order_release);
    for (int r = 0; r < size; ++r) {
      while (arrival(r).round.load(std::memory_order_acquire) < round) {
        if (shares_processors) {
          ::sched_yield();
        } else {
          _mm_pause();
        }
      }
    }
  }
};

struct Slice {
  std::size_t begin;
  std::size_t end;
};

Slice slice_of(int rank, int size, std::size_t count) {
  const auto each = count / static_cast<std::size_t>(size) / 8 * 8;
  const auto begin = each * static_cast<std::size_t>(rank);
  return {begin, rank + 1 == size ? count : begin + each};
}

CONVOY_AVX2 inline __m256 sum_at(const World& world, std::size_t i) {
  auto sum = _mm256_loadu_ps(world.buffer(0) + i);
  for (int r = 1; r < world.size; ++r) {
    sum = _mm256_add_ps(sum, _mm256_loadu_ps(world.buffer(r) + i));
  }
  return sum;
}

CONVOY_AVX2 void reduce_past_caches(World& world, std::size_t count) {
  world.barrier();
  const auto slice = slice_of(world.rank, world.size, count);
  for (auto i = slice.begin; i < slice.end; i += 8) {
    const auto sum = sum_at(world, i);
    for (int r = 0; r < world.size; ++r) _mm256_stream_ps(world.buffer(r) + i, sum);
  }
  _mm_sfence();
  world.barrier();
}

CONVOY_AVX2 void reduce_through_caches(World& world, std::size_t count) {
  world.barrier();
  const auto slice = slice_of(world.rank, world.size, count);
  for (auto i = slice.begin; i < slice.end; i += 8) {
    const auto sum = sum_at(world, i);
    for (int r = 0; r < world.size; ++r) _mm256_storeu_ps(world.buffer(r) + i, sum);
  }
  world.barrier();
}

CONVOY_AVX2 void reduce_own_then_copy(World& world, std::size_t count) {
  world.barrier();
  const auto own = slice_of(world.rank, world.size, count);
  for (auto i = own.begin; i < own.end; i += 8) {
    _mm256_storeu_ps(world.buffer(world.rank) + i, sum_at(world, i));
  }
  world.barrier();
  for (int r = 0; r < world.size; ++r) {
    if (r == world.rank) continue;
    const auto slice = slice_of(r, world.size, count);
    std::memcpy(world.buffer(world.rank) + slice.begin, world.buffer(r) + slice.begin,
                (slice.end - slice.begin) * sizeof(float));
  }
  world.barrier();
}

void gather(World& world, std::size_t count, std::span<float> into) {
  world.barrier();
  for (int r = 0; r < world.size; ++r) {
    if (r == world.rank) continue;
    const auto slice = slice_of(r, world.size, count);
    std::memcpy(into.data() + slice.begin, world.buffer(r) + slice.begin,
                (slice.end - slice.begin) * sizeof(float));
  }
  world.barrier();
}

// The least mean time of five rounds, in seconds.
template <class Operation>
double best_time(std::size_t bytes, const Operation& operation) {
  using Clock = std::chrono::steady_clock;
  const int turns = bytes > (std::size_t{16} << 20)    ? 4
                    : bytes > (std::size_t{512} << 10) ? 20
                                                       : 400;
  double least = 1e9;
  for (int round = 0; round < 5; ++round) {
    operation();
    const auto begin = Clock::now();
    for (int turn = 0; turn < turns; ++turn) operation();
    const std::chrono::duration<double> passed = Clock::now() - begin;
    least = std::min(least, passed.count() / turns);
  }
  return least;
}

void measure(World& world) {
  std::vector<float> own(kLargest / sizeof(float));
  if (world.rank == 0) {
    std::printf("# bare loops, %d ranks; time in us, bus bandwidth in GB/s\n", world.size);
    std::printf("#%11s %12s %8s %9s %9s %9s %12s %8s\n", "size (B)", "all_reduce", "busbw", "past",
                "through", "own", "all_gather", "busbw");
  }
  for (const std::size_t kib : {4, 64, 256, 1024, 4096, 16384, 65536, 262144}) {
    const auto bytes = kib << 10;
    const auto count = bytes / sizeof(float);
    std::fill_n(world.buffer(world.rank), count, 0.0F);
    const auto past = best_time(bytes, [&] { reduce_past_caches(world, count); });
    const auto through = best_time(bytes, [&] { reduce_through_caches(world, count); });
    const auto copied = best_time(bytes, [&] { reduce_own_then_copy(world, count); });
    const auto gathered = best_time(bytes, [&] { gather(world, count, own); });
    if (world.rank != 0) continue;
    const auto reduced = std::min({past, through, copied});
    const auto share = (world.size - 1.0) / world.size;
    const auto gigabytes = static_cast<double>(bytes) * 1e-9;
    std::printf("%12zu %12.2f %8.2f %9.2f %9.2f %9.2f %12.2f %8.2f\n", bytes, reduced * 1e6,
                gigabytes * 2 * share / reduced, past * 1e6, through * 1e6, copied * 1e6,
                gathered * 1e6, gigabytes * share / gathered);
    std::fflush(stdout);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int size = argc > 1 ? std::atoi(argv[1]) : 2;
  if (size < 1 || size > kMostRanks || !__builtin_cpu_supports("avx2")) {
    std::fprintf(stderr, "usage: limit_loop [RANKS], 1 to %d, on a processor with AVX2\n",
                 kMostRanks);
    return 2;
  }
  const auto bytes = kDistance * static_cast<std::size_t>(size) + sizeof(Arrival) * kMostRanks;
  void* pages = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                       MAP_SHARED | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  if (pages == MAP_FAILED) {
    std::perror("limit_loop: mmap");
    return 1;
  }
  const auto processors = ::sysconf(_SC_NPROCESSORS_ONLN);
  World world{0, size, size > processors, static_cast<std::byte*>(pages)};
  for (int r = 1; r < size && world.rank == 0; ++r) {
    if (::fork() == 0) world.rank = r;
  }
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<std::size_t>(world.rank % processors), &set);
  ::sched_setaffinity(0, sizeof set, &set);
  measure(world);
  if (world.rank != 0) std::_Exit(0);
  while (::wait(nullptr) > 0) {
  }
  return 0;
}
