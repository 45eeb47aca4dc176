// Policies: joined, by size and by function, groups of blocks, tied weights, and what a plan tells.
#include "convoy/fsdp/full_params.h"
#include "convoy/fsdp/model_helpers.h"
#include "convoy/fsdp/model_plan.h"
#include "harness.h"
#include "stack_runs.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// A layer (123 elements) inside a unit with 21 more of its own.
struct NestImpl : torch::nn::Module {
  NestImpl()
      : layer(register_module("layer", Layer())),
        own(register_module("own", torch::nn::Linear(6, 3))) {}
  torch::Tensor forward(torch::Tensor x) { return own(layer(x)); }
  Layer layer;
  torch::nn::Linear own;
};
using Nest = Unit<NestImpl>;

struct NestsImpl : torch::nn::Module {
  NestsImpl() : nest(register_module("nest", Nest())), layer(register_module("layer", Layer())) {}
  torch::Tensor forward(torch::Tensor x) { return nest(layer(x)); }
  Nest nest;
  Layer layer;
};
using Nests = Unit<NestsImpl>;

std::vector<std::string> units_of(const torch::nn::Module& model, WrapPolicy policy) {
  std::vector<std::string> names;
  for (const auto& unit : fsdp::plan_model(model, 2, {.wrap = std::move(policy)}).units) {
    names.push_back(unit.name);
  }
  return names;
}

using Names = std::vector<std::string>;

// An embedding and a head of other units over one weight.
struct TableImpl : torch::nn::Module {
  TableImpl() : weight(register_parameter("weight", torch::ones({11, 6}))) {}
  torch::Tensor forward(torch::Tensor ids) { return torch::embedding(weight, ids); }
  torch::Tensor weight;
};
using Table = Unit<TableImpl>;

struct TiedHeadImpl : torch::nn::Module {
  explicit TiedHeadImpl(const torch::Tensor& table)
      : weight(register_parameter("weight", table)),
        bias(register_parameter("bias", torch::ones({11}))) {}
  torch::Tensor forward(torch::Tensor x) { return torch::linear(x, weight, bias); }
  torch::Tensor weight, bias;
};
using TiedHead = Unit<TiedHeadImpl>;

struct TiedModelImpl : torch::nn::Module {
  TiedModelImpl()
      : table(register_module("table", Table())),
        layer(register_module("layer", Layer())),
        head(register_module("head", TiedHead(table->weight))) {}
  torch::Tensor forward(torch::Tensor ids) { return head(layer(table(ids))); }
  Table table;
  Layer layer;
  TiedHead head;
};
using TiedModel = Unit<TiedModelImpl>;

torch::Tensor some_ids(int rank, int step) {
  return torch::remainder(torch::arange(8) * (rank + 2) + step, 11);
}

OptimizerPtr sgd_of_each_once(std::vector<at::Tensor> all) {
  std::vector<at::Tensor> once;
  for (const auto& p : all) {
    const auto same = [&](const at::Tensor& q) { return q.is_same(p); };
    if (std::none_of(once.begin(), once.end(), same)) once.push_back(p);
  }
  return exact_sgd(once);
}

const Training<TiedModel>& tied_training() {
  static const Training<TiedModel> kTraining{
      .make =
          [] {
            TiedModel model;
            seed_parameters(*model, 4);
            return model;
          },
      .loss = [](TiedModel& model, int rank,
                 int step) { return model(some_ids(rank, step)).square().mean(); },
      .optimizer = sgd_of_each_once,
      .steps = 3};
  return kTraining;
}

}  // namespace

TEST_CASE("policies are joined with or and with and and negated") {
  Stack model(3);
  CHECK(units_of(*model, wrap_units_named("layer0") | wrap_units_named("layer2")) ==
        Names{"(root)", "layer0", "layer2"});
  CHECK(units_of(*model, wrap_units_of<Layer>() & !wrap_units_named("layer1")) ==
        Names{"(root)", "layer0", "layer2"});
  CHECK(units_of(*model, !(wrap_units_named("layer0") | wrap_units_named("layer1"))) ==
        Names{"(root)", "layer2"});
  // Only together they choose the plain module "head" not.
  CHECK(units_of(*model, wrap_units_named("**") & wrap_units_of<Layer>()) ==
        Names{"(root)", "layer0", "layer1", "layer2"});
  CHECK(units_of(*model, wrap_units_if([](const std::string& name, const torch::nn::Module& m) {
          return name != "layer1" && m.parameters().size() == 4;
        })) == Names{"(root)", "layer0", "layer2"});
}

TEST_CASE("policies by size count what inner units leave") {
  Nests model;
  CHECK(units_of(*model, wrap_units_larger_than(123)) == Names{"(root)", "nest.layer", "layer"});
  CHECK(units_of(*model, wrap_units_larger_than(124)) == Names{"(root)", "nest"});
  CHECK(units_of(*model, wrap_units_larger_than(21)) ==
        Names{"(root)", "nest", "nest.layer", "layer"});
}

TEST_CASE("policies that choose nothing are errors") {
  ranks(2, [](Rank& rank) {
    Stack model(3);
    const auto wrap = [&](WrapPolicy policy) {
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.wrap = std::move(policy)});
    };
    const auto layers = wrap_units_of<Layer>();
    check_throws(ErrorKind::kInvalidArgument, "chooses no unit", [&] { wrap(layers & !layers); });
    check_throws(ErrorKind::kInvalidArgument, "wrap_units_named(\"block7\") matches no unit",
                 [&] { wrap(layers & !wrap_units_named("block7")); });
    check_throws(ErrorKind::kInvalidArgument, "wrap_units_larger_than(124) matches no unit",
                 [&] { wrap(layers | wrap_units_larger_than(124)); });
    check_throws(ErrorKind::kInvalidArgument, "at least 1", [&] { wrap(group_units(layers, 0)); });
    check_throws(ErrorKind::kInvalidArgument, "at least 1",
                 [&] { wrap(wrap_units_larger_than(0)); });
    check_throws(ErrorKind::kInvalidArgument, "empty", [&] { wrap(wrap_units_if(nullptr)); });
  });
}

TEST_CASE("blocks that share a unit train as in one process") {
  check_parity(tiny_training({}, 3), 1, {.wrap = group_units(wrap_units_of<TinyBlock>(), 2)});
  check_parity(tiny_training({}, 3), 3, {.wrap = group_units(wrap_units_of<TinyBlock>(), 2)});
  check_parity(
      tiny_training({}, 3), 2,
      {.wrap = group_units(wrap_units_of<TinyBlock>(), 8), .reshard_after_forward = false});
}

TEST_CASE("blocks that share a unit are gathered once and given up after the last") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(
        model, rank.comm_ptr(),
        {.wrap = group_units(wrap_units_of<Layer>(), 2), .shared_gather = false});
    check_equal(fsdp.units().size(), std::size_t{3}, "units");
    check_equal(fsdp.units()[1].name, std::string("layer0..layer1"), "name");
    const auto resident = [&](std::size_t unit) { return fsdp.units()[unit].resident_bytes > 0; };
    const auto gathers = [&] { return rank.comm().stats()[OpKind::kAllGather].calls; };
    bool between = false, after = true;
    model->body = [&](StackImpl& self, torch::Tensor x) {
      x = self.layers[0](x);
      between = resident(1);
      x = self.layers[1](x);
      after = resident(1);
      return self.layers[2](x);
    };
    const auto before = gathers();
    {
      const torch::NoGradGuard no_grad;
      model(stack_input(0, 0));
    }
    check_equal(gathers(), before + 3, "the root and two units");
    check(between && !after, "full from the first block to the last");

    // A block that does not run: the end of the model's forward gives the unit up.
    model->body = [](StackImpl& self, torch::Tensor x) { return self.layers[0](x); };
    model(stack_input(0, 0)).sum().backward();
    check(!resident(1), "given up");
    const auto run_first = [](StackImpl& self, torch::Tensor x) {
      self.layers[0](x);
      throw std::runtime_error("the second block fails");
      return x;
    };
    model->body = run_first;
    try {
      model(stack_input(0, 0));
    } catch (const std::runtime_error&) {
    }
    check(!resident(1), "given up by an exception");
  });
}

TEST_CASE("blocks that share a unit may run in any order, twice, or in a checkpoint") {
  const fsdp::Options options{.wrap = group_units(wrap_units_of<Layer>(), 3)};
  const auto run = [&](const Body& body) {
    compare_runs(
        [&](Stack& model, int rank, int step) {
          model->body = body;
          model(stack_input(rank, step).requires_grad_(true)).square().mean().backward();
        },
        2, 0.0, options);
  };
  run([](StackImpl& self, torch::Tensor x) {
    return self.layers[0](self.layers[2](self.layers[0](x)));
  });
  run([](StackImpl& self, torch::Tensor x) {
    x = self.layers[0](x);
    x = checkpoint([&self](torch::Tensor y) { return self.layers[1](y); }, x);
    return self.layers[2](x);
  });
}

TEST_CASE("C027: weights tied across units move to the unit around both and train as one") {
  for (const int world : {1, 2, 3}) check_parity(tied_training(), world);
  for (const bool shared : {true, false}) {
    const StateDict state = train_sharded(tied_training(), 2, {.shared_gather = shared});
    check_same_bits(state["table.weight"], state["head.weight"], "both names");
    ranks(2, [&](Rank& rank) {
      TiedModel model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      check_equal(fsdp.units()[0].numel, std::int64_t{66}, "the root holds the tied weight");
      check_equal(count_parameters(*model), std::int64_t{66 + 123 + 11}, "counted whole and once");
      // A unit that needs what another one holds cannot run without it.
      const torch::NoGradGuard no_grad;
      check_throws(ErrorKind::kMisuse, "outside of unit (root)", [&] {
        model->head(torch::ones({2, 6}));
      });
      rank.comm().barrier()->wait();
    });
  }
  // No unit around both: named with both paths.
  ranks(2, [](Rank& rank) {
    Table table;
    torch::nn::Sequential model{table, TiedHead(table->weight)};
    const auto error = check_throws(ErrorKind::kInvalidArgument, "'0.weight'",
                                    [&] { FullyShardedDataParallel fsdp(model, rank.comm_ptr()); });
    check(std::string(error.what()).find("'1.weight'") != std::string::npos, error.what());
  });
}

TEST_CASE("a plan before wrapping says what wrapping does") {
  TinyGpt model;
  const fsdp::Options options{
      .wrap = group_units(wrap_units_named("blocks.*") & wrap_units_larger_than(100), 2)};
  const std::string text = fsdp::describe(*model, 4, options);
  INFO(text);
  for (const char* part :
       {"over 4 ranks", "(root)", "blocks.0..1", "blocks.2", "total", "padding",
        "wrap_units_larger_than(100): 3 units ('blocks.0', 'blocks.1', 'blocks.2')",
        "memory of a rank at most", "gradient buffers"}) {
    INFO(part);
    CHECK(text.find(part) != std::string::npos);
  }
  const auto missing = fsdp::plan_model(*model, 2, {.wrap = wrap_units_named("layer*")});
  CHECK(missing.rules.at(0).hits.empty());
  CHECK(missing.rules.at(0).misses.size() == 3);
  CHECK(missing.describe().find("an error at wrapping") != std::string::npos);
  for (const bool shared : {true, false}) {
    for (const int world : {1, 2, 3}) {
      ranks(world, [&](Rank& rank) {
        TinyGpt own;
        auto wrapped = options;
        wrapped.shared_gather = shared;
        const auto plan = fsdp::plan_model(*own, world, wrapped);
        FullyShardedDataParallel fsdp(own, rank.comm_ptr(), wrapped);
        const auto units = fsdp.units();
        check_equal(units.size(), plan.units.size(), "units");
        for (std::size_t u = 0; u < units.size(); ++u) {
          check_equal(plan.units[u].name, units[u].name);
          check_equal(plan.units[u].numel, units[u].numel, units[u].name);
          check_equal(plan.units[u].padding_numel, units[u].padding_numel, units[u].name);
          check_equal(plan.units[u].shard_bytes, units[u].shard_bytes, units[u].name);
          check_equal(plan.units[u].full_bytes, units[u].full_bytes, units[u].name);
        }
        check_equal(plan.memory[static_cast<std::size_t>(rank.rank())].gradient_buffers,
                    fsdp.gradient_buffer_bytes(), "gradient buffers");
      });
    }
  }
}

TEST_CASE("a pattern for resharding that matches no unit is an error with the nearest name") {
  const fsdp::Options options{.reshard_after_forward = keep_after_forward("block.2")};
  TinyGpt model;
  check_throws(ErrorKind::kInvalidArgument, "keep_after_forward(\"block.2\") matches no unit",
               [&] { (void)fsdp::plan_model(*model, 2, options); });
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      TinyGpt own;
      auto wrapped = options;
      wrapped.shared_gather = shared;
      const auto error = check_throws(ErrorKind::kInvalidArgument, "matches no unit", [&] {
        FullyShardedDataParallel fsdp(own, rank.comm_ptr(), wrapped);
      });
      check(std::string(error.what()).find("did you mean 'blocks.2'") != std::string::npos,
            error.what());
      wrapped.reshard_after_forward = keep_after_forward("blocks.2");
      FullyShardedDataParallel fsdp(own, rank.comm_ptr(), wrapped);
      for (const auto& call : std::vector<std::function<void()>>{
               [&] { fsdp.set_reshard_after_forward(false, "block.1"); },
               [&] { fsdp.unshard("block.1"); }, [&] { fsdp.reshard("block.1"); },
               [&] { const auto scope = summon_full_params(fsdp, {.units = "block.1"}); }}) {
        const auto miss = check_throws(ErrorKind::kInvalidArgument, "'block.1'", call);
        check(std::string(miss.what()).find("did you mean 'blocks.1'") != std::string::npos,
              miss.what());
      }
    });
  }
  check_throws(ErrorKind::kInvalidArgument, "pattern is empty", [] { keep_after_forward(""); });
}

}  // namespace convoy
