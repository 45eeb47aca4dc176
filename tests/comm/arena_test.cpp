// Memory that ranks share: its contents, lifetime and limits.
#include "comm/values.h"
#include "convoy/comm/run_ranks.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <limits>
#include <string>
#include <vector>

#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

using namespace convoy;
using namespace convoy::test;

TEST_CASE("allocated tensors are zero, apart, aligned and of the wanted type") {
  const auto world = GENERATE(1, 2, 4);
  run_ranks(world, [](Rank& r) {
    std::vector<at::Tensor> tensors;
    for (const std::int64_t numel : {1, 3, 1000, 100000, 7, 300000, 1}) {
      for (const auto dtype : {at::kFloat, at::kBFloat16, at::kDouble, at::kByte}) {
        tensors.push_back(r.comm().allocate(numel, dtype, {.tag = "buffer"}));
        const auto& tensor = tensors.back();
        check_equal(tensor.numel(), numel, "elements");
        check(tensor.scalar_type() == dtype && tensor.is_contiguous(), "type or layout");
        check(tensor.eq(0).all().item<bool>(), "not zero");
        check_equal(reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 64, 0U,
                    "alignment");
        tensors.back().fill_(static_cast<int>(tensors.size()) % 100 + r.rank());
      }
    }
    r.comm().barrier()->wait();
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      check(tensors[i].eq(static_cast<int>(i + 1) % 100 + r.rank()).all().item<bool>(),
            concat("tensor ", i, " was written by somebody else"));
    }
  });
}

TEST_CASE("the ranks' parts begin at different places of a page, so that caches hold all of them") {
  const int world = GENERATE(2, 3, 5);
  for (const std::int64_t numel : {1000, 100000, 8 << 20}) {
    std::vector<std::uintptr_t> places(static_cast<std::size_t>(world));
    run_ranks(world, [&](Rank& r) {
      const auto tensor = r.comm().allocate(numel, at::kFloat);
      const auto address = reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr());
      places[static_cast<std::size_t>(r.rank())] = address % 4096;
      check_equal(address % 64, 0U, "alignment");
    });
    std::sort(places.begin(), places.end());
    CHECK(std::adjacent_find(places.begin(), places.end()) == places.end());
  }
}

TEST_CASE("allocate_shared is one memory on all ranks") {
  const auto world = GENERATE(1, 2, 5);
  run_ranks(world, [](Rank& r) {
    check(r.comm().shares_memory(), "no shared memory");
    for (const std::int64_t numel : {5, 1000, 200003}) {
      auto shared = r.comm().allocate_shared(numel, at::kFloat);
      check(shared.eq(0).all().item<bool>(), "not zero");
      r.comm().barrier()->wait();
      const auto begin = numel * r.rank() / r.size();
      const auto count = numel * (r.rank() + 1) / r.size() - begin;
      shared.narrow(0, begin, count).copy_(values_of(0, numel, at::kFloat).narrow(0, begin, count));
      r.comm().barrier()->wait();
      check_same_bits(shared, values_of(0, numel, at::kFloat), "all parts");
      r.comm().barrier()->wait();
      // Collectives take it too.
      r.comm().broadcast(shared, r.size() - 1)->wait();
      check_same_bits(shared, values_of(0, numel, at::kFloat), "after a broadcast");
    }
  });
}

TEST_CASE("shared and own allocations take turns without touching") {
  run_ranks(3, [](Rank& r) {
    std::vector<at::Tensor> own;
    std::vector<at::Tensor> shared;
    for (int i = 0; i < 30; ++i) {
      own.push_back(r.comm().allocate(1 + i * 977, at::kFloat));
      shared.push_back(r.comm().allocate_shared(1 + i * 1009, at::kFloat));
      own.back().fill_(i * 10 + r.rank());
      if (r.rank() == i % 3) shared.back().fill_(i * 10 + 5);
    }
    r.comm().barrier()->wait();
    for (int i = 0; i < 30; ++i) {
      const auto index = static_cast<std::size_t>(i);
      check(own[index].eq(i * 10 + r.rank()).all().item<bool>(), "own memory changed");
      check(shared[index].eq(i * 10 + 5).all().item<bool>(), "shared memory changed");
    }
  });
}

namespace {

/// Bytes of the mapping around `address` that this process reaches through huge pages.
std::int64_t huge_bytes_around(const void* address) {
  const auto wanted = reinterpret_cast<std::uintptr_t>(address);
  std::ifstream maps("/proc/self/smaps");
  bool is_inside = false;
  for (std::string line; std::getline(maps, line);) {
    unsigned long begin = 0;
    unsigned long end = 0;
    long kib = 0;
    if (std::sscanf(line.c_str(), "%lx-%lx ", &begin, &end) == 2) {
      is_inside = begin <= wanted && wanted < end;
    } else if (is_inside && std::sscanf(line.c_str(), "ShmemPmdMapped: %ld", &kib) == 1) {
      return std::int64_t{kib} << 10;
    }
  }
  return 0;
}

/// True if this kernel puts a memory file on huge pages when it is asked to.
bool has_huge_memory_files() {
  constexpr std::size_t kHuge = std::size_t{2} << 20;
  const int fd = ::memfd_create("probe", MFD_CLOEXEC);
  if (fd < 0 || ::ftruncate(fd, kHuge) != 0) return false;
  void* const room = ::mmap(nullptr, 2 * kHuge, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  const auto inside = reinterpret_cast<std::uintptr_t>(room) % kHuge;
  void* const place = static_cast<char*>(room) + (kHuge - inside) % kHuge;
  ::mmap(place, kHuge, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0);
  *static_cast<volatile char*>(place) = 1;
  constexpr int kCollapse = 25;  // MADV_COLLAPSE
  const bool has = ::madvise(place, kHuge, kCollapse) == 0;
  ::munmap(room, 2 * kHuge);
  ::close(fd);
  return has;
}

void raise_to(std::atomic<std::int64_t>& value, std::int64_t other) {
  auto seen = value.load();
  while (seen < other && !value.compare_exchange_weak(seen, other)) {
  }
}

/// Allocates, writes and reduces more than ten huge pages on each of three ranks; own and shared.
/// Returns the most bytes that one of them had on huge pages.
std::int64_t reduce_large_tensors() {
  std::atomic<std::int64_t> most = 0;
  run_ranks(3, [&](Rank& r) {
    const std::int64_t numel = (std::int64_t{11} << 19) + 4099;  // 22 MiB of floats, and some.
    auto own = r.comm().allocate(numel, at::kFloat);
    const auto shared = r.comm().allocate_shared(numel, at::kFloat);
    check(own.eq(0).all().item<bool>() && shared.eq(0).all().item<bool>(), "not zero");
    own.copy_(values_of(r.rank(), numel, at::kFloat));
    r.comm().all_reduce(own)->wait();
    check_same_bits(own, reduced_values(3, numel, at::kFloat, ReduceOp::kSum));
    raise_to(most, std::max(huge_bytes_around(own.const_data_ptr()),
                            huge_bytes_around(shared.const_data_ptr())));
  });
  return most;
}

}  // namespace

TEST_CASE("large allocations lie on huge pages, or on small ones where the kernel refuses") {
  ::prctl(PR_SET_THP_DISABLE, 1, 0, 0, 0);
  CHECK(reduce_large_tensors() == 0);
  ::prctl(PR_SET_THP_DISABLE, 0, 0, 0, 0);
  const std::int64_t granted = reduce_large_tensors();
  // Normally all but the end of each chunk; on a busy machine at least what was asked for first.
  if (has_huge_memory_files()) CHECK(granted >= std::int64_t{2} << 20);
}

TEST_CASE("tensors outlive their communicator") {
  std::vector<at::Tensor> kept(2);
  run_ranks(2, [&](Rank& r) {
    const auto comm = make_communicator(r.job(), {.name = "short-lived"});
    auto tensor = comm->allocate(100000, at::kFloat);
    tensor.fill_(r.rank() + 1);
    comm->barrier()->wait();
    kept[static_cast<std::size_t>(r.rank())] = tensor;
  });
  CHECK(kept[0].eq(1).all().item<bool>());
  CHECK(kept[1].eq(2).all().item<bool>());
}

TEST_CASE("a limit of shared memory is one error on all ranks, and the group lives on") {
  run_ranks(
      3,
      [](Rank& r) {
        const auto small = r.comm().allocate(1000, at::kFloat);
        const auto error = check_throws(ErrorKind::kMemory, "cannot reserve", [&] {
          r.comm().allocate(std::int64_t{8} << 20, at::kFloat, {.tag = "bucket 7"});
        });
        for (const auto* part : {"'bucket 7'", "100667392 bytes", "found", "shared_memory_limit"}) {
          check(std::string(error.what()).find(part) != std::string::npos,
                concat("'", part, "' is not in ", error.what()));
        }
        auto again = r.comm().allocate(100000, at::kFloat);
        check(again.eq(0).all().item<bool>(), "not zero");
        again.copy_(values_of(r.rank(), 100000, at::kFloat));
        r.comm().all_reduce(again)->wait();
        check_same_bits(again, reduced_values(3, 100000, at::kFloat, ReduceOp::kSum));
        check(small.eq(0).all().item<bool>(), "earlier memory changed");
      },
      {.shared_memory_limit = std::int64_t{48} << 20});
}

TEST_CASE("a limit below the first segment is one error on all ranks") {
  CHECK_THROWS_WITH(run_ranks(2, [](Rank&) {}, {.shared_memory_limit = 1 << 20}),
                    Catch::Contains("cannot reserve") && Catch::Contains("found 1048576 bytes"));
}

TEST_CASE("a limit of address space is named on all ranks, and the group lives on") {
  rlimit before{};
  REQUIRE(::getrlimit(RLIMIT_AS, &before) == 0);
  run_ranks(2, [&](Rank& r) {
    r.comm().barrier()->wait();
    if (r.rank() == 0) {
      rlim_t pages = 0;
      std::ifstream("/proc/self/statm") >> pages;
      const rlimit limit{pages * 4096 + (rlim_t{256} << 20), before.rlim_max};
      check_equal(::setrlimit(RLIMIT_AS, &limit), 0, "setrlimit");
    }
    r.comm().barrier()->wait();
    check_throws(ErrorKind::kMemory, "(ulimit -v)",
                 [&] { r.comm().allocate(std::int64_t{64} << 20, at::kFloat); });
    r.comm().barrier()->wait();
    if (r.rank() == 0) ::setrlimit(RLIMIT_AS, &before);
    check(r.comm().allocate(1000, at::kFloat).eq(0).all().item<bool>(), "not zero");
  });
}

TEST_CASE("more memory than the machine has is an error and not a kill") {
  run_ranks(2, [](Rank& r) {
    check_throws(ErrorKind::kMemory, "cannot reserve",
                 [&] { r.comm().allocate(std::int64_t{1} << 38, at::kFloat); });
    r.comm().barrier()->wait();
  });
}
