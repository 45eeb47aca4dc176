// Ranks that use different parameters: of a unit, of units around units, and by the step.
#include "convoy/fsdp/unit_checkpoint.h"
#include "harness.h"
#include "modules.h"
#include "stack_runs.h"
#include "support/catch.h"

#include <array>

namespace convoy {
namespace {

using namespace test;

enum class Use { kAll, kFirst, kSecond, kNone, kIdentity };

// Uses what it is told to.
struct FickleLayerImpl : torch::nn::Module {
  FickleLayerImpl()
      : a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x, Use use) {
    switch (use) {
      case Use::kAll: return x + b(torch::tanh(a(x)));
      case Use::kFirst: return x + torch::tanh(a(x));
      case Use::kSecond: return x + b(x);
      case Use::kNone: return torch::tanh(x * 2);
      case Use::kIdentity: return x;
    }
    return x;
  }
  torch::nn::Linear a, b;
};
using FickleLayer = Unit<FickleLayerImpl>;

// A unit around two, with parameters before and behind them.
struct FicklePairImpl : torch::nn::Module {
  FicklePairImpl()
      : before(register_module("before", torch::nn::Linear(6, 6))),
        first(register_module("first", FickleLayer())),
        second(register_module("second", FickleLayer())),
        behind(register_module("behind", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x, Use use) {
    if (use == Use::kAll || use == Use::kFirst) x = before(x);
    x = second(first(x, use), use);
    if (use == Use::kAll || use == Use::kSecond) x = x + behind(x);
    return x;
  }
  torch::nn::Linear before;
  FickleLayer first, second;
  torch::nn::Linear behind;
};
using FicklePair = Unit<FicklePairImpl>;

template <typename Layer>
struct FickleStackImpl : torch::nn::Module {
  FickleStackImpl()
      : before(register_module("before", torch::nn::Linear(6, 6))),
        head(register_module("head", torch::nn::Linear(6, 4))) {
    for (std::size_t i = 0; i < 4; ++i) {
      layers[i] = register_module("layer" + std::to_string(i), Layer());
    }
  }
  torch::Tensor forward(torch::Tensor x, const std::array<Use, 5>& uses) {
    if (uses[4] != Use::kSecond) x = x + before(x);
    for (std::size_t i = 0; i < 4; ++i) x = layers[i](x, uses[i]);
    return uses[4] == Use::kFirst ? x : head(x);
  }
  torch::nn::Linear before, head;
  std::array<Layer, 4> layers{Layer{nullptr}, Layer{nullptr}, Layer{nullptr}, Layer{nullptr}};
};

// What a rank uses of the four layers and of the root in a step.
using Plan = std::function<std::array<Use, 5>(int rank, int step)>;

constexpr auto kAll = Use::kAll;
constexpr auto kIdentity = Use::kIdentity;

const std::vector<std::pair<std::string, Plan>>& plans() {
  const auto on_even = [](std::array<Use, 5> even, std::array<Use, 5> odd) {
    return [even, odd](int rank, int) { return rank % 2 == 0 ? even : odd; };
  };
  const std::array<Use, 5> all{kAll, kAll, kAll, kAll, kAll};
  static const std::vector<std::pair<std::string, Plan>> kPlans = {
      {"halves", on_even({Use::kFirst, Use::kSecond, Use::kFirst, Use::kSecond, kAll},
                         {Use::kSecond, Use::kFirst, Use::kSecond, Use::kFirst, kAll})},
      {"nothing of the last", on_even({kAll, kAll, kAll, Use::kNone, kAll}, all)},
      {"nothing of the middle", on_even(all, {kAll, Use::kNone, Use::kNone, kAll, kAll})},
      {"the last is passed by", on_even({kAll, kAll, kAll, kIdentity, kAll}, all)},
      {"the first are passed by", on_even(all, {kIdentity, kIdentity, kAll, kAll, kAll})},
      {"the middle is passed by", on_even({kAll, kIdentity, kIdentity, kAll, kAll}, all)},
      {"all are passed by", on_even({kIdentity, kIdentity, kIdentity, kIdentity, kAll}, all)},
      {"root, behind", on_even({kAll, kAll, kAll, kAll, Use::kFirst}, all)},
      {"root, before", on_even({kAll, kAll, kAll, kAll, Use::kSecond}, all)},
      {"root, each its own",
       on_even({kAll, kAll, kAll, kAll, Use::kFirst}, {kAll, kAll, kAll, kAll, Use::kSecond})},
      {"by the step", [](int rank, int step) {
         std::array<Use, 5> uses;
         for (int i = 0; i < 5; ++i) {
           uses[static_cast<std::size_t>(i)] = static_cast<Use>((7 * rank + 3 * step + i * i) % 5);
         }
         if (uses[4] == Use::kNone || uses[4] == kIdentity) uses[4] = kAll;
         return uses;
       }}};
  return kPlans;
}

struct Ways {
  bool accumulates = false;
  ReshardAfterForward reshards = true;
  std::vector<bool> shared = {true, false};
};

template <typename Layer>
void check_plan(const Plan& plan, int world, const std::string& what, const Ways& ways = {}) {
  using Model = Unit<FickleStackImpl<Layer>>;
  const auto make = [] {
    Model model;
    seed_parameters(*model, 17);
    return model;
  };
  const auto backward = [&](Model& model, int rank, int step) {
    // Like an output of layers before: a unit that is passed by leaves it as it is.
    const auto x = stack_input(rank, step).requires_grad_(true);
    model(x, plan(rank, step)).square().mean().backward();
  };
  const int rounds = ways.accumulates ? 2 : 1;
  StateDict expected;
  {
    Model model = make();
    const auto parameters = model->parameters();
    const auto optimizer = exact_sgd(parameters);
    for (int step = 0; step < 3; ++step) {
      mean_gradients(parameters, world, [&](int rank) {
        for (int i = 0; i < rounds; ++i) backward(model, rank, rounds * step + i);
      });
      optimizer->step();
    }
    expected = plain_state(model);
  }
  for (const bool shared : ways.shared) {
    ranks(world, [&](Rank& rank) {
      Model model = make();
      FullyShardedDataParallel fsdp(
          model, rank.comm_ptr(),
          {.reshard_after_forward = ways.reshards, .shared_gather = shared});
      const auto optimizer = exact_sgd(model->parameters());
      for (int step = 0; step < 3; ++step) {
        if (ways.accumulates) {
          const auto pause = fsdp.no_sync();
          backward(model, rank.rank(), rounds * step);
        }
        backward(model, rank.rank(), rounds * step + rounds - 1);
        for (const auto& unit : fsdp.units()) {
          check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " after backward");
        }
        optimizer->step();
        optimizer->zero_grad();
      }
      const StateDict state = full_state_dict(fsdp);
      const auto where = concat(what, ", world ", world, ", ", path_name(shared));
      if (rank.rank() == 0) check_same_state(state, expected, where);
    });
  }
}

}  // namespace

TEST_CASE("C044: ranks may use different parameters of a unit and pass units by") {
  for (const auto& [name, plan] : plans()) {
    for (const int world : {2, 3}) check_plan<FickleLayer>(plan, world, name);
  }
}

TEST_CASE("ranks may use different parameters of units around units") {
  for (const auto& [name, plan] : plans()) check_plan<FicklePair>(plan, 2, name);
}

TEST_CASE("ranks may use different parameters of a unit under no_sync") {
  for (const auto& [name, plan] : plans()) {
    check_plan<FickleLayer>(plan, 2, name, {.accumulates = true});
  }
}

TEST_CASE("ranks may use different parameters where units are kept until backward") {
  const auto keeping = [](ReshardAfterForward reshards) {
    return Ways{.reshards = std::move(reshards), .shared = {false}};
  };
  for (const auto& [name, plan] : plans()) {
    check_plan<FickleLayer>(plan, 2, name, keeping(keep_after_forward("layer3")));
    check_plan<FicklePair>(plan, 2, name, keeping(false));
  }
}

namespace {

// Trains a step or more on every rank. Throws unless all get the bits of one process, or all the
// error that names what the ranks called. Returns whether it was the error.
bool fails_everywhere(int world, const std::function<void(Rank&)>& train) {
  std::vector<std::string> texts(static_cast<std::size_t>(world));
  const auto begin = std::chrono::steady_clock::now();
  ranks(world, [&](Rank& rank) {
    try {
      train(rank);
    } catch (const Error& error) {
      texts[static_cast<std::size_t>(rank.rank())] = error.what();
    }
  });
  CHECK(std::chrono::steady_clock::now() - begin < 20s);
  for (const std::string& text : texts) {
    INFO(text);
    CHECK(text.empty() == texts.front().empty());
    const bool named = text.find("the ranks disagree on operation") != std::string::npos;
    CHECK((text.empty() || named));
  }
  return !texts.front().empty();
}

}  // namespace

TEST_CASE("C044: private gathers of other units than the peers' are one named error") {
  const auto run = [](const Body& body) {
    return fails_everywhere(3, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
      model->body = body;
      const auto x = stack_input(rank.rank(), 0).requires_grad_(true);
      model(x).square().mean().backward();
      check(false, "ranks that gather other units");
    });
  };
  for (const std::size_t skipped : {0U, 1U, 2U}) {
    // By the input, which differs between the ranks.
    CHECK(run([skipped](StackImpl& self, torch::Tensor x) {
      const bool skips = at::equal(x, stack_input(1, 0));
      for (std::size_t i = 0; i < 3; ++i) {
        if (!skips || i != skipped) x = self.layers[i](x);
      }
      return x;
    }));
  }
}

TEST_CASE("ranks may use different parameters inside checkpoints or get one named error") {
  using Model = Unit<FickleStackImpl<FickleLayer>>;
  int failed = 0;
  for (const auto& [name, plan] : plans()) {
    for (const bool shared : {true, false}) {
      INFO(name);
      const auto make = [] {
        Model model;
        seed_parameters(*model, 17);
        return model;
      };
      const auto backward = [plan = plan](Model& model, int rank) {
        const auto x = stack_input(rank, 0).requires_grad_(true);
        model(x, plan(rank, 0)).square().mean().backward();
      };
      Model plain = make();
      mean_gradients(plain->parameters(), 2, [&](int rank) { backward(plain, rank); });
      const bool fails = fails_everywhere(2, [&](Rank& rank) {
        Model model = make();
        checkpoint_units(model, wrap_units_of<FickleLayer>());
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
        backward(model, rank.rank());
        for (const ShardSpan& span : fsdp.shard_spans()) {
          const auto whole = plain->named_parameters()[span.name].grad();
          check_equal(span.leaf.grad().defined(), whole.defined(), span.name);
          if (!whole.defined()) continue;
          check_same_bits(span.leaf.grad().flatten(),
                          whole.flatten().narrow(0, span.begin, span.numel), span.name);
        }
      });
      CHECK((!shared || !fails));
      failed += fails ? 1 : 0;
    }
  }
  INFO(failed);
  CHECK(failed < static_cast<int>(plans().size()));
}

}  // namespace convoy
