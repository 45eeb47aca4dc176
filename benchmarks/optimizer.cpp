// Times convoy's AdamW and gradient clipping beside torch's own, taking turns, best of several.
//
// benchmark_optimizer [threads]: one line a size and operation, in nanoseconds an element; "ratio"
// below 1 means convoy is faster.
#include "convoy/base/parse.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/clip_grad_norm.h"

#include <torch/nn/utils/clip_grad.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

double seconds(const std::function<void()>& body) {
  const auto begin = Clock::now();
  body();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Best {
  double ours = std::numeric_limits<double>::infinity();
  double torch = std::numeric_limits<double>::infinity();
};

/// The best time of each, in turns so that both meet the same machine; the order swaps each round.
Best race(int rounds, int repeats, const std::function<void()>& ours,
          const std::function<void()>& theirs) {
  const auto repeated = [&](const std::function<void()>& body) {
    return seconds([&] {
             for (int i = 0; i < repeats; ++i) body();
           }) /
           repeats;
  };
  ours();
  theirs();
  Best best;
  for (int round = 0; round < rounds; ++round) {
    if (round % 2 == 0) best.ours = std::min(best.ours, repeated(ours));
    best.torch = std::min(best.torch, repeated(theirs));
    if (round % 2 != 0) best.ours = std::min(best.ours, repeated(ours));
  }
  return best;
}

void report(const char* what, std::int64_t numel, std::size_t tensors, const Best& best) {
  const auto elements = static_cast<double>(numel);
  std::printf("%-16s %10lld in %4zu   convoy %7.3f   torch %7.3f   ratio %.3f\n", what,
              static_cast<long long>(numel), tensors, best.ours / elements * 1e9,
              best.torch / elements * 1e9, best.ours / best.torch);
  std::fflush(stdout);
}

std::vector<at::Tensor> make_parameters(std::int64_t numel, std::int64_t tensors) {
  std::vector<at::Tensor> params;
  for (std::int64_t i = 0; i < tensors; ++i) {
    const auto length = numel / tensors + (i == 0 ? numel % tensors : 0);
    params.push_back(torch::randn({length}).requires_grad_());
    params.back().mutable_grad() = torch::randn({length});
  }
  return params;
}

/// at::_fused_adamw_ with its state, called as PyTorch's AdamW(fused=True) calls it.
class FusedAdamW {
 public:
  explicit FusedAdamW(const std::vector<at::Tensor>& params) {
    for (const auto& param : params) {
      values_.push_back(param.detach());
      grads_.push_back(param.grad());
      averages_.push_back(torch::zeros_like(values_.back()));
      squares_.push_back(torch::zeros_like(values_.back()));
      counts_.push_back(torch::zeros({}, at::kFloat));
    }
  }
  void step() {
    at::_foreach_add_(counts_, 1);
    at::_fused_adamw_(values_, grads_, averages_, squares_, {}, counts_, 1e-3, 0.9, 0.999, 1e-2,
                      1e-8, /*amsgrad=*/false, /*maximize=*/false);
  }

 private:
  std::vector<at::Tensor> values_, grads_, averages_, squares_, counts_;
};

void race_all(std::int64_t numel, std::int64_t tensors) {
  const torch::NoGradGuard no_grad;
  const auto params = make_parameters(numel, tensors);
  const auto others = make_parameters(numel, tensors);
  const int repeats = static_cast<int>(std::max<std::int64_t>(1, 2000000 / numel));
  const int rounds = numel > 20000000 ? 7 : 15;
  convoy::optim::AdamW adamw(params);
  FusedAdamW fused(others);
  report("adamw", numel, params.size(),
         race(
             rounds, repeats, [&] { adamw.step(); }, [&] { fused.step(); }));
  // A limit that is never reached: the norm alone, as in most steps of a run. torch scales anyway.
  report("norm", numel, params.size(),
         race(
             rounds, repeats, [&] { convoy::clip_grad_norm_(params, 1e30); },
             [&] { torch::nn::utils::clip_grad_norm_(others, 1e30); }));
  // A limit that always bites a little, so that the values stay in range.
  double limit = 1e6;
  report("norm and scale", numel, params.size(),
         race(
             rounds, repeats,
             [&] {
               const double norm = convoy::clip_grad_norm_(params, limit);
               limit = std::min(limit, norm) * 0.9999;
             },
             [&] { torch::nn::utils::clip_grad_norm_(others, limit); }));
}

}  // namespace

int main(int argc, char** argv) {
  const auto threads = argc > 1 ? convoy::parse_int(argv[1], 1, 4096) : 1;
  if (!threads || argc > 2) {
    std::fprintf(stderr, "usage: benchmark_optimizer [THREADS]\n");
    return 2;
  }
  at::set_num_threads(static_cast<int>(*threads));
  std::printf("%d thread(s); ns an element, best of several\n", at::get_num_threads());
  for (const std::int64_t numel : {10000, 100000, 1000000, 10000000, 60000000}) race_all(numel, 1);
  race_all(100000, 50);
  race_all(11000000, 76);
  return 0;
}
