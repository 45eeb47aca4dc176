// A random sequence of collectives made from one seed.
#include "comm/random_sequence.h"

#include "comm/values.h"
#include "support/check.h"

#include <ATen/ATen.h>

#include <deque>
#include <functional>
#include <random>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

class Sequence {
 public:
  Sequence(Communicator& comm, unsigned seed) : comm_(comm), seed_(seed), random_(seed) {
    for (int i = 0; i < kArenaTensors; ++i) {
      arena_.push_back(comm.allocate(kMostNumel * comm.size(), at::kFloat));
    }
  }

  void run(int count) {
    for (number_ = 0; number_ < count; ++number_) {
      start_one();
      // The same decisions on all ranks; who polls or dawdles differs.
      const auto longest = pick(9) == 0 ? std::size_t{0} : static_cast<std::size_t>(pick(100));
      while (in_flight_.size() > longest) finish_oldest();
      if ((number_ + comm_.rank()) % 3 == 0) comm_.poll();
    }
    while (!in_flight_.empty()) finish_oldest();
  }

 private:
  static constexpr int kArenaTensors = 4;
  static constexpr std::int64_t kMostNumel = 20000;

  struct Flight {
    WorkPtr work;
    std::function<void()> check_result;
    int arena_tensor;  // In use by this operation, or -1.
  };

  int pick(int below) { return static_cast<int>(random_() % static_cast<unsigned>(below)); }

  // A tensor of `numel` values; sometimes in the arena, where its place must not be in use.
  at::Tensor take(std::int64_t numel, at::ScalarType dtype, int& arena_tensor) {
    arena_tensor = -1;
    const bool wants_arena = pick(2) == 0;
    const int which = pick(kArenaTensors);
    if (dtype != at::kFloat || !wants_arena) {
      return at::empty({numel}, at::TensorOptions().dtype(dtype));
    }
    while (is_in_use(which)) finish_oldest();
    arena_tensor = which;
    return arena_[static_cast<std::size_t>(which)].narrow(0, pick(3), numel);
  }

  bool is_in_use(int which) const {
    for (const auto& flight : in_flight_) {
      if (flight.arena_tensor == which) return true;
    }
    return false;
  }

  void start_one() {
    constexpr at::ScalarType kTypes[] = {at::kFloat, at::kFloat, at::kBFloat16, at::kLong,
                                         at::kDouble};
    const auto dtype = kTypes[pick(5)];
    const auto numel = std::int64_t{pick(2) == 0 ? pick(40) : pick(kMostNumel - 3)};
    const auto op = std::vector{ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax}[pick(3) % 3];
    const auto seed = static_cast<int>(seed_) + number_;
    const auto values = [=](int r, std::int64_t n) { return values_of(r, n, dtype, seed); };
    const OpOptions options{.tag = concat("op ", number_)};
    const auto what = concat("seed ", seed_, ", operation ", number_);
    const int size = comm_.size();
    const int rank = comm_.rank();
    int place = -1;
    switch (pick(5)) {
      case 0: {
        auto tensor = take(numel, dtype, place);
        tensor.copy_(values(rank, numel));
        add(comm_.all_reduce(tensor, op, options), place, [=] {
          check_same_bits(tensor, reduced_values(size, numel, dtype, op, seed),
                          what + ", all_reduce");
        });
        break;
      }
      case 1: {
        auto input = take(numel * size, dtype, place);
        input.copy_(values(rank, numel * size));
        auto output = at::empty({numel}, at::TensorOptions().dtype(dtype));
        add(comm_.reduce_scatter(output, input, op, options), place, [=] {
          const auto whole = reduced_values(size, numel * size, dtype, op, seed);
          check_same_bits(output, whole.narrow(0, rank * numel, numel), what + ", reduce_scatter");
        });
        break;
      }
      case 2: {
        auto input = take(numel, dtype, place);
        input.copy_(values(rank, numel));
        auto output = at::empty({numel * size}, at::TensorOptions().dtype(dtype));
        add(comm_.all_gather(output, input, options), place, [=] {
          std::vector<at::Tensor> parts;
          for (int r = 0; r < size; ++r) parts.push_back(values(r, numel));
          check_same_bits(output, at::cat(parts), what + ", all_gather");
        });
        break;
      }
      case 3: {
        const int root = pick(size);
        auto tensor = take(numel, dtype, place);
        tensor.copy_(values(rank, numel));
        add(comm_.broadcast(tensor, root, options), place,
            [=] { check_same_bits(tensor, values(root, numel), what + ", broadcast"); });
        break;
      }
      default: add(comm_.barrier(options), -1, [] {});
    }
  }

  void add(WorkPtr work, int arena_tensor, std::function<void()> check_result) {
    in_flight_.push_back({std::move(work), std::move(check_result), arena_tensor});
  }

  void finish_oldest() {
    in_flight_.front().work->wait();
    in_flight_.front().check_result();
    in_flight_.pop_front();
  }

  Communicator& comm_;
  unsigned seed_;
  std::mt19937 random_;
  int number_ = 0;
  std::vector<at::Tensor> arena_;
  std::deque<Flight> in_flight_;
};

}  // namespace

void run_random_sequence(Communicator& comm, unsigned seed, int count) {
  Sequence(comm, seed).run(count);
}

}  // namespace convoy::test
