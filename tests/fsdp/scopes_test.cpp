// Between steps: whole parameters to read and to write, gathering by hand, other methods than
// forward, ignored parameters.
#include "convoy/fsdp/full_params.h"
#include "convoy/fsdp/model_helpers.h"
#include "harness.h"
#include "stack_runs.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// A layer that two and three ranks share: 32 x 32 and 32 elements.
struct EvenLayerImpl : torch::nn::Module {
  EvenLayerImpl() : linear(register_module("linear", torch::nn::Linear(32, 32))) {}
  torch::Tensor forward(torch::Tensor x) { return x + torch::tanh(linear(x)); }
  torch::nn::Linear linear;
};
using EvenLayer = Unit<EvenLayerImpl>;

struct EvenStackImpl : torch::nn::Module {
  EvenStackImpl() : head(register_module("head", torch::nn::Linear(32, 4))) {
    for (int i = 0; i < 3; ++i) {
      layers.push_back(register_module("layer" + std::to_string(i), EvenLayer()));
    }
    inside = [] {};
  }
  torch::Tensor forward(torch::Tensor x) {
    for (auto& layer : layers) x = layer(x);
    inside();
    return head(x);
  }
  std::vector<EvenLayer> layers;
  torch::nn::Linear head;
  std::function<void()> inside;
};
using EvenStack = Unit<EvenStackImpl>;

EvenStack make_even_stack() {
  EvenStack model;
  seed_parameters(*model, 23);
  return model;
}

torch::Tensor even_input(int rank, int step) {
  return torch::linspace(-1, 1, 96).view({3, 32}) * (rank + 1) + step;
}

at::Tensor even_loss(EvenStack& model, int rank, int step) {
  return model(even_input(rank, step)).square().mean();
}

bool is_whole(const at::Tensor& leaf, const at::Tensor& reference) {
  return same_bits(leaf.detach(), reference.detach());
}

// Forward runs one layer; `reverse` runs another way through the same parameters.
struct TwoWaysImpl : torch::nn::Module {
  TwoWaysImpl()
      : a(register_module("a", Layer())),
        b(register_module("b", Layer())),
        scale(register_parameter("scale", torch::ones({5, 6}))) {}
  torch::Tensor forward(torch::Tensor x) { return b(a(x)) * scale.sum(0); }
  torch::Tensor reverse(torch::Tensor x) { return a(b(x)) + scale.mean(0); }
  Layer a, b;
  torch::Tensor scale;
};
using TwoWays = Unit<TwoWaysImpl>;

}  // namespace

TEST_CASE("summon_full_params shows whole values, and keeps what all ranks write") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      EvenStack model = make_even_stack();
      EvenStack reference = make_even_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = even_input(0, 0);
      const torch::NoGradGuard no_grad;
      const auto check_forward = [&](const std::string& what) {
        check_same_bits(model(x), reference(x), what);
      };
      check_forward("before");
      const auto whole = reference->parameters();
      {
        const auto scope = summon_full_params(fsdp, {.writeback = false});
        const auto own = model->parameters();
        for (std::size_t i = 0; i < own.size(); ++i) check(is_whole(own[i], whole[i]), "whole");
        for (auto& parameter : model->parameters()) parameter.fill_(100.0);  // dropped
      }
      check_forward("what is written without writeback is dropped");
      {
        const auto scope = summon_full_params(fsdp);
        for (auto& parameter : model->parameters()) parameter.mul_(0.5);
      }
      for (auto& parameter : reference->parameters()) parameter.mul_(0.5);
      check_forward("what all ranks write is kept");
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_equal(span.leaf.numel(), span.numel, span.name + " shows its shard again");
      }
    });
  }
}

TEST_CASE("summon_full_params writes of every rank count where the rank owns, or rank 0's") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      EvenStack model = make_even_stack();
      const auto shapes = make_even_stack()->parameters();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const torch::NoGradGuard no_grad;
      {
        auto scope = summon_full_params(fsdp);
        for (auto& parameter : model->parameters()) parameter.fill_(rank.rank() + 1.0);
        scope.close();
      }
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_same_bits(span.leaf.detach(), torch::full(span.leaf.sizes(), rank.rank() + 1.0),
                        span.name);
      }
      {
        const auto scope = summon_full_params(fsdp, {.writeback = true, .rank0_only = true});
        for (std::size_t i = 0; i < shapes.size(); ++i) {
          const bool whole = model->parameters()[i].sizes() == shapes[i].sizes();
          check(rank.rank() != 0 || whole, "whole on rank 0");
        }
        if (rank.rank() == 0) {
          for (auto& parameter : model->parameters()) parameter.fill_(7.0);
        }
      }
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_same_bits(span.leaf.detach(), torch::full(span.leaf.sizes(), 7.0F), span.name);
      }
    });
  }
}

TEST_CASE("summon_full_params of some units leaves the others and does not disturb training") {
  StateDict expected;
  {
    EvenStack model = make_even_stack();
    const auto parameters = model->parameters();
    const auto optimizer = exact_sgd(parameters);
    for (int step = 0; step < 3; ++step) {
      mean_gradients(parameters, 2,
                     [&](int rank) { model(even_input(rank, step)).square().mean().backward(); });
      optimizer->step();
      const torch::NoGradGuard no_grad;
      for (auto& parameter : model->layers[1]->parameters()) parameter.mul_(0.5);
    }
    expected = plain_state(model);
  }
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      EvenStack model = make_even_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto optimizer = exact_sgd(model->parameters());
      const auto step_of = [&](int step) {
        model(even_input(rank.rank(), step)).square().mean().backward();
        optimizer->step();
        optimizer->zero_grad();
      };
      for (int step = 0; step < 3; ++step) {
        step_of(step);
        const torch::NoGradGuard no_grad;
        const auto scope = summon_full_params(fsdp, {.units = "layer1"});
        check(model->layers[1]->linear->weight.sizes() == at::IntArrayRef({32, 32}), "summoned");
        check(model->layers[0]->linear->weight.size(0) < 32, "not summoned");
        for (auto& parameter : model->layers[1]->parameters()) parameter.mul_(0.5);
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
      {
        const auto scope =
            summon_full_params(fsdp, {.writeback = false, .units = "(root)", .recurse = false});
        check(model->head->weight.sizes() == at::IntArrayRef({4, 32}), "the root's own");
        check(model->layers[0]->linear->weight.size(0) < 32, "not what is inside");
      }
      const auto scope = summon_full_params(fsdp, {.writeback = false, .units = "(root)"});
      check(model->layers[2]->linear->weight.size(0) == 32, "what is inside as well");
    });
  }
}

TEST_CASE("summon_full_params refuses what cannot be inside it") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      EvenStack model = make_even_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = even_input(0, 0);
      check_throws(ErrorKind::kInvalidArgument, "'block1'",
                   [&] { const auto scope = summon_full_params(fsdp, {.units = "block1"}); });
      const auto loss = model(x).sum();
      {
        const auto scope = summon_full_params(fsdp, {.writeback = false});
        const char* inside = "inside a summon_full_params scope";
        check_throws(ErrorKind::kMisuse, inside, [&] { model(x); });
        check_throws(ErrorKind::kMisuse, inside, [&] { model->layers[0](x); });
        check_throws(ErrorKind::kMisuse, inside, [&] { loss.backward(); });
        check_throws(ErrorKind::kMisuse, inside, [&] { const auto edit = fsdp.edit(); });
        check_throws(ErrorKind::kMisuse, inside, [&] { full_state_dict(fsdp); });
        check_throws(ErrorKind::kMisuse, inside,
                     [&] { const auto other = summon_full_params(fsdp); });
        check_throws(ErrorKind::kMisuse, inside, [&] { fsdp.unshard(); });
      }
      model->inside = [&] { const auto scope = summon_full_params(fsdp); };
      check_throws(ErrorKind::kMisuse, "inside a forward", [&] { model(x); });
      rank.comm().barrier()->wait();
    });
  }
}

TEST_CASE("summon_full_params left by an exception on one rank is an error on the others") {
  ranks(2, [](Rank& rank) {
    EvenStack model = make_even_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    fsdp.settle();  // closes the window: writing back must meet the others
    if (rank.rank() == 1) {
      try {
        const auto scope = summon_full_params(fsdp);
        throw std::runtime_error("in the scope");
      } catch (const std::runtime_error&) {
      }
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_equal(span.leaf.numel(), span.numel, span.name + " shows its shard again");
      }
      return;
    }
    check_throws(ErrorKind::kFailed, "scope on rank 1 was left by an exception", [&] {
      auto scope = summon_full_params(fsdp);
      scope.close();
    });
  });
}

TEST_CASE("unshard keeps units full over several forwards, until reshard or a backward") {
  for (const bool shared : {true, false}) {
    const Training<EvenStack> training{
        .make = make_even_stack, .loss = even_loss, .optimizer = exact_sgd, .steps = 3};
    const StateDict expected = train_alone(training, 2);
    ranks(2, [&](Rank& rank) {
      EvenStack model = make_even_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto optimizer = exact_sgd(model->parameters());
      const auto gathers = [&] { return rank.comm().stats()[OpKind::kAllGather].calls; };
      for (int step = 0; step < 3; ++step) {
        fsdp.unshard();
        check(model->layers[1]->linear->weight.size(0) == 32, "whole");
        const auto before = gathers();
        {
          const torch::NoGradGuard no_grad;
          for (int i = 0; i < 3; ++i) model(even_input(rank.rank(), i));
        }
        check_equal(gathers(), before, "gathers of the forwards");
        check_throws(ErrorKind::kMisuse, "unsharded by hand",
                     [&] { const auto edit = fsdp.edit(); });
        check_throws(ErrorKind::kMisuse, "unsharded by hand",
                     [&] { const auto other = summon_full_params(fsdp); });
        if (step == 0) {
          fsdp.reshard("layer?");
          check(model->layers[1]->linear->weight.size(0) < 32, "given up by hand");
          check(model->head->weight.size(0) == 4, "not named");
        }
        training.loss(model, rank.rank(), step).backward();
        for (const ShardSpan& span : fsdp.shard_spans()) {
          check_equal(span.leaf.numel(), span.numel, span.name + " after backward");
        }
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
      check_throws(ErrorKind::kInvalidArgument, "'nothing'", [&] { fsdp.unshard("nothing"); });
    });
  }
}

TEST_CASE("reshard_after_forward may differ from unit to unit and change between steps") {
  check_parity(tiny_training({}, 3), 2, {.reshard_after_forward = keep_after_forward("blocks.2")});
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(
        model, rank.comm_ptr(),
        {.reshard_after_forward = keep_after_forward("layer2"), .shared_gather = false});
    const auto kept = [&] {
      const auto loss = model(stack_input(rank.rank(), 0)).sum();
      std::vector<std::string> names;
      for (const auto& unit : fsdp.units()) {
        if (unit.resident_bytes > 0) names.push_back(unit.name);
      }
      loss.backward();
      return names;
    };
    using Kept = std::vector<std::string>;
    check(kept() == Kept{"(root)", "layer2"}, "one unit and the root");
    fsdp.set_reshard_after_forward(false, "layer0");
    check(kept() == Kept{"(root)", "layer0", "layer2"}, "two units");
    fsdp.set_reshard_after_forward(true);
    check(kept() == Kept{"(root)"}, "the root");
    check_throws(ErrorKind::kInvalidArgument, "'nothing'",
                 [&] { fsdp.set_reshard_after_forward(true, "nothing"); });
  });
}

TEST_CASE("run_as_unit trains through other methods than forward") {
  check_parity(
      Training<TwoWays>{
          .make =
              [] {
                TwoWays model;
                seed_parameters(*model, 6);
                return model;
              },
          .loss =
              [](TwoWays& model, int rank, int step) {
                const auto x = stack_input(rank, step);
                if (step % 2 == 0) return model(x).square().mean();
                return run_as_unit(model, [&] { return model->reverse(x); }).square().mean();
              },
          .optimizer = exact_sgd,
          .steps = 4},
      2);
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      TwoWays model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = stack_input(0, 0);
      std::int64_t rows = 0;
      run_as_unit(*model->a, [&] { rows = model->a->up->weight.size(0); });  // returns nothing
      check_equal(rows, std::int64_t{9}, "whole inside");
      check_throws(ErrorKind::kMisuse, "'scale'", [&] { model->reverse(x).sum().backward(); });
      check_throws(ErrorKind::kInvalidArgument, "not a convoy::Unit",
                   [&] { run_as_unit(model->a->up, [] {}); });
    });
  }
}

TEST_CASE("ignored parameters stay whole and private to their rank") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      Stack alone = make_seeded_stack();
      FullyShardedDataParallel fsdp(
          model, rank.comm_ptr(),
          {.shared_gather = shared,
           .ignored = parameters_named("head.*") |
                      parameters_if([](const std::string& name, const at::Tensor& p) {
                        return p.dim() == 1 && name == "layer0.up.bias";
                      })});
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check(!span.name.starts_with("head."), span.name);
      }
      const auto x = stack_input(rank.rank(), 0);
      model(x).square().mean().backward();
      alone(x).square().mean().backward();
      check_same_bits(model->head->weight.grad(), alone->head->weight.grad(), "not reduced");
      check_same_bits(model->layers[0]->up->bias.grad(), alone->layers[0]->up->bias.grad());
      check_equal(count_parameters(*model), count_parameters(*alone), "counted");
      const torch::NoGradGuard no_grad;
      model->head->weight.fill_(rank.rank() + 3.0);
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) {
        check_equal(state.size(), alone->named_parameters().size(), "all names");
        check_equal(state["head.weight"].max().item<float>(), 3.0F, "rank 0's");
      }
      load_full_state_dict(fsdp, state);
      check_equal(model->head->weight.max().item<float>(), 3.0F, "loaded everywhere");
      check_throws(ErrorKind::kInvalidArgument, "matches no parameter", [&] {
        Stack other(2);
        FullyShardedDataParallel wrapped(other, rank.comm_ptr(),
                                         {.ignored = parameters_named("lora*")});
      });
    });
  }
}

}  // namespace convoy
