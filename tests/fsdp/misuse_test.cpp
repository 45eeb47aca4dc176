// Misuse that would be silent with slices ends in named errors.
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

#include <fstream>

namespace convoy {
namespace {

using namespace test;

struct LeakyImpl : torch::nn::Module {
  LeakyImpl() : inner(register_module("inner", torch::nn::Linear(6, 6))) {}
  torch::Tensor forward(torch::Tensor x) {
    auxiliary = inner(x).square().mean();
    return inner(x);
  }
  torch::nn::Linear inner;
  torch::Tensor auxiliary;
};

// Calls its layers through the plain type, around the unit.
struct AroundImpl : torch::nn::Module {
  AroundImpl() : layer(register_module("layer", Layer())) {}
  torch::Tensor forward(torch::Tensor x) {
    return static_cast<LayerImpl&>(*layer).LayerImpl::forward(x);
  }
  Layer layer;
};

struct OutsideImpl : torch::nn::Module {
  OutsideImpl()
      : layer(register_module("layer", Layer())),
        lonely(register_module("lonely", torch::nn::Linear(2, 2))) {}
  torch::Tensor forward(torch::Tensor x) { return layer(x); }
  Layer layer;
  torch::nn::Linear lonely;
};
TORCH_MODULE(Outside);

struct TiedImpl : torch::nn::Module {
  TiedImpl()
      : a(register_module("a", torch::nn::Linear(6, 6))),
        b(register_module("b", torch::nn::Linear(6, 6))),
        layer(register_module("layer", Layer())) {
    b->weight = b->register_parameter("tied", a->weight);
  }
  torch::Tensor forward(torch::Tensor x) {
    return torch::linear(torch::linear(layer(x), a->weight), a->weight);
  }
  torch::nn::Linear a, b;
  Layer layer;
};
using Tied = Unit<TiedImpl>;

torch::Tensor some_input() { return torch::ones({2, 6}); }

}  // namespace

TEST_CASE("parameters outside of units are refused by name") {
  ranks(2, [](Rank& rank) {
    Outside model;
    check_throws(ErrorKind::kInvalidArgument, "'lonely.weight', 'lonely.bias'",
                 [&] { FullyShardedDataParallel fsdp(model, rank.comm_ptr()); });
  });
}

TEST_CASE("a policy that misses, or meets a plain module, is an error") {
  ranks(1, [](Rank& rank) {
    Stack model;
    const auto wrap = [&](WrapPolicy policy) {
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.wrap = std::move(policy)});
    };
    check_throws(ErrorKind::kInvalidArgument, "matches no unit",
                 [&] { wrap(wrap_units_named("block*")); });
    check_throws(ErrorKind::kInvalidArgument, "'layer0'",
                 [&] { wrap(wrap_units_of<TinyBlock>()); });
    check_throws(ErrorKind::kInvalidArgument, "'head'", [&] { wrap(wrap_units_named("head")); });
    check_throws(ErrorKind::kInvalidArgument, "empty", [&] { wrap(wrap_units_named("")); });
    wrap(wrap_units_named("layer?"));
    check_throws(ErrorKind::kInvalidArgument, "wrapped already",
                 [&] { wrap(wrap_units_named("layer?")); });
  });
}

TEST_CASE("name patterns") {
  using fsdp::name_matches;
  CHECK(name_matches("blocks.*", "blocks.0"));
  CHECK_FALSE(name_matches("blocks.*", "blocks.0.mlp"));
  CHECK(name_matches("blocks.**", "blocks.0.mlp"));
  CHECK(name_matches("**.mlp", "blocks.0.mlp"));
  CHECK(name_matches("block?.mlp", "block7.mlp"));
  CHECK_FALSE(name_matches("block?mlp", "block.mlp"));
  CHECK_FALSE(name_matches("blocks", "blocks.0"));
  CHECK(name_matches("*", "head"));
}

TEST_CASE("tied parameters in one unit train as in one process") {
  check_parity(
      Training<Tied>{
          .make =
              [] {
                Tied model;
                seed_parameters(*model, 4);
                return model;
              },
          .loss =
              [](Tied& model, int rank, int step) {
                return model(torch::full({2, 6}, 0.1F * float(rank + step))).square().mean();
              },
          .optimizer =
              [](std::vector<at::Tensor> all) {
                std::vector<at::Tensor> once;
                for (const auto& p : all) {
                  if (std::none_of(once.begin(), once.end(),
                                   [&](const auto& q) { return q.is_same(p); })) {
                    once.push_back(p);
                  }
                }
                return exact_sgd(once);
              },
          .steps = 3},
      2);
}

TEST_CASE("to, save, load and clone of a sharded model are refused, whatever holds the unit") {
  ranks(1, [](Rank& rank) {
    Stack model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    check_throws(ErrorKind::kMisuse, "to(dtype)", [&] { model->to(torch::kDouble); });
    check_throws(ErrorKind::kMisuse, "to(device)", [&] { model->to(torch::kCPU); });
    std::stringstream stream;
    check_throws(ErrorKind::kMisuse, "full_state_dict", [&] { torch::save(model, stream); });
    check_throws(ErrorKind::kMisuse, "clone()", [&] { model->clone(); });
    check_throws(ErrorKind::kMisuse, "to(dtype)", [&] { model->layers[0]->to(torch::kDouble); });
    torch::serialize::InputArchive archive;
    check_throws(ErrorKind::kMisuse, "torch::load", [&] { model->load(archive); });
  });
}

TEST_CASE("a leaf that was moved off its shard is named at the next gather") {
  ranks(2, [](Rank& rank) {
    Stack model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model->head->weight.set_data(model->head->weight.detach().clone());
    check_throws(ErrorKind::kMisuse, "'head.weight'", [&] { model(some_input()); });
  });
}

TEST_CASE("a tensor that leaves a unit without being returned is named at forward") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Unit<LeakyImpl> model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      check_throws(ErrorKind::kMisuse, "'inner.", [&] { model(some_input()); });
      model->auxiliary.reset();
      const torch::NoGradGuard no_grad;
      model(some_input());  // without a graph there is nothing to leak
    });
  }
}

TEST_CASE("a unit called around its own forward is named at forward") {
  ranks(1, [](Rank& rank) {
    Unit<AroundImpl> model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    check_throws(ErrorKind::kMisuse, "outside of unit layer", [&] { model(some_input()); });
  });
}

TEST_CASE("a sharded leaf in a graph of its own is an error in backward") {
  ranks(2, [](Rank& rank) {
    Stack model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    auto loss = model(some_input()).square().mean();
    loss = loss + model->layers[0]->up->weight.square().sum();  // a regulariser on shards
    bool threw = false;
    try {
      loss.backward();
    } catch (const std::exception&) {
      threw = true;
    }
    check(threw, "a use of the shard must not pass silently");
  });
}

TEST_CASE("a parameter used only outside of every unit's forward is named") {
  ranks(1, [](Rank& rank) {
    Stack model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model(some_input());  // takes the accumulators
    const auto loss = model->head->weight.square().sum();
    check_throws(ErrorKind::kMisuse, "'head.weight'", [&] { loss.backward(); });
  });
}

TEST_CASE("gradients before wrapping, other dtypes and results of operations are refused by name") {
  ranks(1, [](Rank& rank) {
    const auto wrap = [&](auto& model) { FullyShardedDataParallel fsdp(model, rank.comm_ptr()); };
    Stack with_gradient;
    with_gradient(some_input()).sum().backward();
    check_throws(ErrorKind::kInvalidArgument, "has a gradient already",
                 [&] { wrap(with_gradient); });
    with_gradient->zero_grad();
    wrap(with_gradient);
    Stack half;
    half->to(torch::kBFloat16);
    check_throws(ErrorKind::kInvalidArgument, "BFloat16", [&] { wrap(half); });
    Stack mixed;
    mixed->layers[1]->to(torch::kDouble);
    check_throws(ErrorKind::kInvalidArgument, "one dtype", [&] { wrap(mixed); });
    Stack overlapping;
    overlapping->layers[0]->down->bias.set_data(
        overlapping->layers[0]->up->weight.detach().flatten().narrow(0, 3, 6));
    check_throws(ErrorKind::kInvalidArgument, "share memory", [&] { wrap(overlapping); });
    Stack none{nullptr};
    check_throws(ErrorKind::kInvalidArgument, "empty", [&] { wrap(none); });
  });
}

}  // namespace convoy
