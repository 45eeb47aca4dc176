// Two wrapped models in one graph, as adversarial training has them, on one communicator.
#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/fsdp.h"
#include "parity/parity_run.h"
#include "support/catch.h"

namespace {

using namespace convoy;
using namespace convoy::test;

struct MapperImpl : torch::nn::Module {
  MapperImpl()
      : block(register_module("block", TinyBlock(TinyGptConfig{}))),
        out(register_module("out", torch::nn::Linear(12, 12))) {}
  torch::Tensor forward(torch::Tensor x) { return out(block(x)); }
  TinyBlock block;
  torch::nn::Linear out;
};
using Mapper = Unit<MapperImpl>;

struct Pair {
  Mapper maker, judge;
};

Pair make_pair_of_models() {
  Pair pair;
  seed_parameters(*pair.maker, 1);
  seed_parameters(*pair.judge, 2);
  return pair;
}

torch::Tensor noise(int rank, int step) {
  auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(91 * rank + step + 1));
  return torch::randn({2, 7, 12}, generator);
}

/// Four rounds of one step of the judge and one of the maker. `backward(step, makes)` leaves the
/// gradients of both models on their leaves.
template <class Backward>
void train_pair(Pair& pair, const Backward& backward) {
  optim::AdamW makers(pair.maker->parameters(), {.lr = 0.01});
  optim::AdamW judges(pair.judge->parameters(), {.lr = 0.02});
  for (int step = 0; step < 4; ++step) {
    for (const bool makes : {false, true}) {
      backward(step, makes);
      (makes ? makers : judges).step();
      makers.zero_grad();
      judges.zero_grad();
    }
  }
}

torch::Tensor loss_of_pair(const torch::Tensor& verdict, bool makes) {
  return makes ? verdict.square().mean() : (verdict - 1).abs().mean();
}

Pair train_pair_alone(int world) {
  auto pair = make_pair_of_models();
  auto all = pair.maker->parameters();
  for (const auto& parameter : pair.judge->parameters()) all.push_back(parameter);
  train_pair(pair, [&](int step, bool makes) {
    mean_gradients(all, world, [&](int rank) {
      loss_of_pair(pair.judge(pair.maker(noise(rank, step))), makes).backward();
    });
  });
  return pair;
}

template <class Wrapped>
void check_shards(Wrapped& wrapped, const Mapper& expected) {
  for (const auto& span : wrapped.shard_spans()) {
    const auto whole = expected->named_parameters()[span.name].detach().flatten();
    check_same_bits(span.leaf.detach().flatten(), whole.narrow(0, span.begin, span.numel),
                    span.name);
  }
}

}  // namespace

TEST_CASE("two wrapped models in one graph equal one process bit for bit") {
  for (const int world : {1, 3}) {
    const auto expected = train_pair_alone(world);
    const auto train_wrapped = [&](Rank& r, Pair& pair, auto& maker, auto& judge) {
      train_pair(pair, [&](int step, bool makes) {
        loss_of_pair(judge(maker(noise(r.rank(), step))), makes).backward();
      });
      check_shards(maker, expected.maker);
      check_shards(judge, expected.judge);
    };
    run_ranks(
        world,
        [&](Rank& r) {
          at::set_num_threads(1);
          auto pair = make_pair_of_models();
          DistributedDataParallel maker(pair.maker, r.comm_ptr());
          DistributedDataParallel judge(pair.judge, r.comm_ptr());
          train_wrapped(r, pair, maker, judge);
        },
        comm_options());
    for (const bool shared_gather : {true, false}) {
      run_ranks(
          world,
          [&](Rank& r) {
            at::set_num_threads(1);
            auto pair = make_pair_of_models();
            const FsdpOptions options{.shared_gather = shared_gather};
            FullyShardedDataParallel maker(pair.maker, r.comm_ptr(), options);
            FullyShardedDataParallel judge(pair.judge, r.comm_ptr(), options);
            train_wrapped(r, pair, maker, judge);
          },
          comm_options());
    }
  }
}
