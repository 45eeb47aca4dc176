// Units checkpointed by a policy beside everything else that FSDP does: the bits of plain units.
#include "convoy/base/trace.h"
#include "stack_runs.h"
#include "support/catch.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

namespace convoy {

using namespace test;

namespace {

/// Layers of which two are frozen, one in part.
void freeze_some(Stack& model) {
  model->layers[1]->up->weight.set_requires_grad(false);
  for (auto& parameter : model->layers[2]->parameters()) parameter.set_requires_grad(false);
}

struct Variant {
  std::string name;
  fsdp::Options options;
  std::function<void(Stack&)> prepare = [](Stack&) {};
  bool accumulates = false;  ///< A backward under no_sync before each step's own.
};

StateDict train(const Variant& variant, bool shared, bool checkpoints) {
  StateDict state;
  ranks(2, [&](Rank& rank) {
    Stack model = make_seeded_stack();
    variant.prepare(model);
    if (checkpoints) check_equal(checkpoint_units(model, wrap_units_of<Layer>()), std::size_t{3});
    fsdp::Options options = variant.options;
    options.shared_gather = shared;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
    const auto optimizer = exact_sgd(model->parameters());
    const auto backward = [&](int step) {
      model(stack_input(rank.rank(), step)).square().mean().backward();
    };
    for (int step = 0; step < 3; ++step) {
      if (variant.accumulates) {
        const auto pause = fsdp.no_sync();
        backward(step + 10);
      }
      backward(step);
      for (const auto& unit : fsdp.units()) {
        check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " after backward");
      }
      optimizer->step();
      optimizer->zero_grad();
    }
    auto mine = full_state_dict(fsdp);
    if (rank.rank() == 0) state = std::move(mine);
  });
  return state;
}

struct PairImpl : torch::nn::Module {
  PairImpl()
      : first(register_module("first", Layer())),
        second(register_module("second", Layer())),
        mix(register_module("mix", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x) { return second(mix(first(x))); }
  Layer first, second;
  torch::nn::Linear mix;
};
using Pair = Unit<PairImpl>;

struct NestedImpl : torch::nn::Module {
  NestedImpl() : a(register_module("a", Pair())), b(register_module("b", Pair())) {}
  torch::Tensor forward(torch::Tensor x) { return b(a(x)); }
  Pair a, b;
};
using Nested = Unit<NestedImpl>;

}  // namespace

TEST_CASE("checkpointed units have the bits of plain ones beside other options") {
  const std::vector<Variant> variants{
      {.name = "bf16", .options = {.mixed_precision = {.param_dtype = at::kBFloat16}}},
      {.name = "groups", .options = {.wrap = group_units(wrap_units_of<Layer>(), 3)}},
      {.name = "frozen", .options = {}, .prepare = freeze_some},
      {.name = "kept", .options = {.reshard_after_forward = false}},
      {.name = "root only", .options = {.wrap = !wrap_every_unit()}},
      {.name = "accumulation", .options = {}, .accumulates = true},
  };
  for (const Variant& variant : variants) {
    for (const bool shared : {true, false}) {
      check_same_state(train(variant, shared, true), train(variant, shared, false),
                       concat(variant.name, ", ", path_name(shared)));
    }
  }
}

TEST_CASE("checkpointed units inside checkpointed units have the bits of plain ones") {
  const auto plain = training_of<Nested>();
  auto checkpointed = plain;
  checkpointed.make = [make = plain.make] {
    Nested model = make();
    const auto policy = wrap_units_of<Pair>() | wrap_units_of<Layer>();
    check_equal(checkpoint_units(model, policy), std::size_t{6}, "units");
    return model;
  };
  for (const int world : {1, 2, 3}) {
    const StateDict expected = train_alone(plain, world);
    for (const bool shared : {true, false}) {
      check_same_state(train_sharded(checkpointed, world, {.shared_gather = shared}), expected,
                       concat("world ", world, ", ", path_name(shared)));
    }
  }
}

TEST_CASE("the trace shows checkpointed units gathered once in backward and ahead of use") {
  ranks(2, [](Rank& rank) {
    const auto sink = std::make_shared<trace::MemorySink>();
    const auto comm =
        make_communicator(rank.job(), {.timeout = 60s, .name = "traced", .trace = sink});
    Stack model = make_seeded_stack();
    checkpoint_units(model, wrap_units_of<Layer>());
    FullyShardedDataParallel fsdp(model, comm, {.shared_gather = false});
    std::size_t before = 0;
    for (int step = 0; step < 2; ++step) {
      before = sink->events().size();
      model(stack_input(rank.rank(), step)).square().mean().backward();
      model->zero_grad();
    }
    auto events = sink->events();
    events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(before));
    std::stable_sort(events.begin(), events.end(),
                     [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
    const auto of_name = [&](std::string_view name) {
      std::vector<std::string> details;
      for (const auto& event : events) {
        if (event.name == name && event.category != "wait") details.push_back(event.detail);
      }
      return details;
    };
    using Names = std::vector<std::string>;
    check(of_name("all_gather") ==
              Names{"(root)", "layer0", "layer1", "layer2", "layer2", "layer1", "layer0"},
          "gathers");
    check(of_name("gather ahead") ==
              Names{"layer0", "layer1", "layer2", "layer2", "layer1", "layer0"},
          "gathers ahead");
    check(of_name("unit forward").size() == 4, "the second run is no forward of the unit");
    Names backwards = of_name("unit backward");
    std::erase(backwards, "(root)");
    check(
        backwards == Names{"layer2", "layer1"} || backwards == Names{"layer2", "layer1", "layer0"},
        "backwards of units");
  });
}

}  // namespace convoy
