// The state of optimizers by name, whole, between worlds and strategies.
#include "convoy/ddp/ddp.h"
#include "convoy/model_checkpoint.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/sgd.h"
#include "fsdp/harness.h"
#include "support/catch.h"
#include "train_gpt/scratch.h"

#include <array>
#include <optional>

namespace convoy {
namespace {

using namespace test;
using testing::Scratch;

enum class Wrap { kNone, kDdp, kShared, kPrivate };

/// A small transformer in one of the strategies, with its optimizer.
class Trained {
 public:
  Trained(Wrap wrap, Rank& rank, const MakeOptimizer& make)
      : rank_(rank), model_(training().make()) {
    if (wrap == Wrap::kDdp) ddp_.emplace(model_, rank.comm_ptr());
    if (wrap == Wrap::kShared || wrap == Wrap::kPrivate) {
      fsdp_.emplace(model_, rank.comm_ptr(), fsdp::Options{.shared_gather = wrap == Wrap::kShared});
    }
    optimizer_ = make(model_->parameters());
  }

  void train(int first, int last, bool same_batches = false) {
    for (int step = first; step < last; ++step) {
      const TinyBatch batch = tiny_batch(same_batches ? 0 : rank_.rank(), step);
      const auto logits = ddp_ ? (*ddp_)(batch.tokens) : model_(batch.tokens);
      tiny_loss(logits, batch.targets).backward();
      optimizer_->step();
      optimizer_->zero_grad();
    }
  }

  /// Calls `use` with the wrapped or plain model.
  template <class Use>
  auto with_model(const Use& use) {
    if (ddp_) return use(*ddp_);
    if (fsdp_) return use(*fsdp_);
    return use(model_);
  }
  torch::optim::Optimizer& optimizer() { return *optimizer_; }
  StateDict state() {
    return with_model([&](auto& m) { return full_optimizer_state_dict(m, *optimizer_); });
  }
  void load(const StateDict& state) {
    with_model([&](auto& m) { load_full_optimizer_state_dict(m, *optimizer_, state); });
  }
  void save(const Scratch& scratch) {
    with_model([&](auto& m) {
      save_model(scratch.path() / "model", m);
      save_optimizer(scratch.path() / "optimizer", m, *optimizer_);
    });
  }
  void load(const Scratch& scratch) {
    with_model([&](auto& m) {
      load_model(scratch.path() / "model", m);
      load_optimizer(scratch.path() / "optimizer", m, *optimizer_);
    });
  }

 private:
  static Training<TinyGpt> training() { return tiny_training({.layers = 1}); }

  Rank& rank_;
  TinyGpt model_;
  std::optional<DistributedDataParallel<TinyGpt>> ddp_;
  std::optional<FullyShardedDataParallel<TinyGpt>> fsdp_;
  OptimizerPtr optimizer_;
};

/// AdamW of two groups with decays and rates of their own.
OptimizerPtr two_groups(std::vector<at::Tensor> parameters) {
  std::vector<optim::ParamGroup> groups(2);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    groups[i % 2].params.push_back(parameters[i]);
  }
  groups[0].weight_decay = 0.0;
  groups[1].lr = 3e-4;
  return std::make_unique<optim::AdamW>(std::move(groups), optim::AdamWOptions{.lr = 1e-3});
}

std::string tensor_name(const char* field) { return concat("state.blocks.0.up.weight.", field); }

const std::vector<MakeOptimizer>& all_optimizers() {
  static const std::vector<MakeOptimizer> makers{
      two_groups,
      [](auto p) {
        return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.01));
      },
      [](auto p) {
        return std::make_unique<torch::optim::AdamW>(
            p, torch::optim::AdamWOptions(0.01).amsgrad(true));
      },
      [](auto p) {
        return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1, .momentum = 0.9});
      },
      [](auto p) {
        return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
      },
      [](auto p) { return std::make_unique<optim::SGD>(p, optim::SGDOptions{.lr = 0.1}); }};
  return makers;
}

}  // namespace

TEST_CASE("optimizer state: every optimizer's comes back whole in another world and strategy") {
  for (std::size_t kind = 0; kind < all_optimizers().size(); ++kind) {
    const auto& make = all_optimizers()[kind];
    StateDict saved;
    ranks(3, [&](Rank& rank) {
      Trained trained(Wrap::kShared, rank, make);
      trained.train(0, 2);
      StateDict state = trained.state();
      check(rank.rank() == 0 || state.is_empty(), "only rank 0 gets the state");
      if (rank.rank() == 0) saved = std::move(state);
    });
    CAPTURE(kind);
    const bool is_adam = kind < 3;
    const bool has_momentum = kind == 3 || kind == 4;
    CHECK(saved.contains(tensor_name("step")) == !has_momentum);
    if (is_adam) CHECK(saved[tensor_name("step")].item<int>() == 2);
    if (is_adam) CHECK(saved[tensor_name("exp_avg")].sizes() == c10::IntArrayRef({31, 12}));
    CHECK(saved.contains(tensor_name("max_exp_avg_sq")) == (kind == 2));
    CHECK(saved.contains(tensor_name("momentum_buffer")) == has_momentum);
    ranks(2, [&](Rank& rank) {
      Trained other(kind % 2 == 0 ? Wrap::kPrivate : Wrap::kDdp, rank, make);
      other.load(rank.rank() == 0 ? saved : StateDict());
      const StateDict again = other.state();
      if (rank.rank() == 0) check_same_state(again, saved, "loaded");
    });
  }
}

TEST_CASE("checkpoint: a resumed run has the bits of an unbroken one in every strategy") {
  const Scratch scratch, other;
  StateDict expected;
  ranks(3, [&](Rank& rank) {
    Trained trained(Wrap::kDdp, rank, two_groups);
    trained.train(0, 3);
    trained.save(scratch);
    trained.train(3, 6);
    trained.save(other);
  });
  expected = load_safetensors(other.path() / "model");
  for (const auto wrap : {Wrap::kDdp, Wrap::kShared, Wrap::kPrivate}) {
    const Scratch again;
    ranks(3, [&](Rank& rank) {
      Trained trained(wrap, rank, two_groups);
      trained.load(scratch);
      trained.train(3, 6);
      trained.save(again);
    });
    check_same_state(load_safetensors(again.path() / "model"), expected, "resumed");
    // Between the steps of another strategy, and from it back.
    CHECK(testing::read_whole(again.path() / "optimizer") ==
          testing::read_whole(other.path() / "optimizer"));
  }
}

TEST_CASE("C099: saved at 4 ranks with two groups and loaded at 1 2 3 and 8") {
  const Scratch scratch, end;
  ranks(4, [&](Rank& rank) {
    Trained trained(Wrap::kPrivate, rank, two_groups);
    trained.train(0, 3, /*same_batches=*/true);
    trained.save(scratch);
  });
  ranks(1, [&](Rank& rank) {
    Trained unbroken(Wrap::kNone, rank, two_groups);
    unbroken.train(0, 6, true);
    unbroken.save(end);
  });
  const StateDict expected = load_safetensors(end.path() / "model");
  const std::array<std::pair<int, Wrap>, 4> worlds{
      {{1, Wrap::kNone}, {2, Wrap::kDdp}, {3, Wrap::kShared}, {8, Wrap::kPrivate}}};
  for (const auto& [world, wrap] : worlds) {
    const Scratch again;
    ranks(world, [&, wrap = wrap](Rank& rank) {
      Trained trained(wrap, rank, two_groups);
      trained.load(scratch);
      trained.train(3, 6, true);
      trained.save(again);
    });
    check_close_state(load_safetensors(again.path() / "model"), expected, 1e-6,
                      concat("world ", world));
  }
}

TEST_CASE("C099: what is missing wrong or too much in a state is named on every rank") {
  const Scratch scratch;
  ranks(2, [&](Rank& rank) {
    Trained trained(Wrap::kShared, rank, two_groups);
    trained.train(0, 2);
    trained.save(scratch);
  });
  const StateDict good = load_safetensors(scratch.path() / "optimizer");
  struct Case {
    std::string name;
    std::optional<at::Tensor> value;  ///< Absent: taken out.
    std::string part;
  };
  const std::vector<Case> cases{
      {tensor_name("exp_avg"), {}, "'state.blocks.0.up.weight.exp_avg' is missing"},
      {tensor_name("step"), {}, "'state.blocks.0.up.weight.step' is missing"},
      {tensor_name("exp_avg_sq"), torch::zeros({12, 31}), "has shape [12, 31]"},
      {tensor_name("exp_avg"), torch::zeros({31, 12}, torch::kDouble), "is Double"},
      {tensor_name("step"), torch::tensor(1.5), "'state.blocks.0.up.weight.step' is 1.5"},
      {"state.other.exp_avg", torch::zeros({1}), "'state.other.exp_avg' in"}};
  for (const Case& wrong : cases) {
    StateDict bad;
    for (const auto& item : good) {
      if (item.key() != wrong.name) bad.insert(item.key(), item.value());
    }
    if (wrong.value) bad.insert(wrong.name, *wrong.value);
    save_safetensors(scratch.path() / "optimizer", bad);
    std::array<std::string, 2> texts;
    ranks(2, [&](Rank& rank) {
      Trained trained(Wrap::kPrivate, rank, two_groups);
      trained.train(0, 1);
      const StateDict before = trained.state();
      const Error error =
          check_throws(ErrorKind::kInvalidArgument, wrong.part, [&] { trained.load(scratch); });
      texts[static_cast<std::size_t>(rank.rank())] = error.what();
      check_same_state(trained.state(), before, "an error changes nothing");
    });
    CHECK(texts[0] == texts[1]);
  }
}

TEST_CASE("checkpoint: another model is refused on every rank before anything is changed") {
  const Scratch scratch;
  ranks(1, [&](Rank& rank) {
    Trained trained(Wrap::kNone, rank, two_groups);
    trained.save(scratch);
  });
  StateDict state = load_safetensors(scratch.path() / "model");
  const auto refuse_load = [&](const char* part) {
    save_safetensors(scratch.path() / "model", state);
    ranks(2, [&](Rank& rank) {
      Trained trained(Wrap::kShared, rank, two_groups);
      check_throws(ErrorKind::kInvalidArgument, part, [&] { trained.load(scratch); });
      trained.train(0, 1);  // The ranks are still together.
    });
  };
  state.insert("extra", torch::zeros({2}));
  refuse_load("'extra' in");
  state.erase("extra");
  const at::Tensor head = state["head.weight"];
  state["head.weight"] = head.to(torch::kHalf);
  refuse_load("'head.weight' is Half in");
  state.erase("head.weight");
  refuse_load("'head.weight' is missing in");
}

TEST_CASE("optimizer state: parameters without state and outside of the optimizer") {
  const Scratch scratch;
  ranks(2, [&](Rank& rank) {
    // Half of the parameters are stepped, and none has been yet.
    const MakeOptimizer half = [](std::vector<at::Tensor> parameters) {
      parameters.resize(parameters.size() / 2);
      return std::make_unique<optim::AdamW>(std::move(parameters));
    };
    Trained trained(Wrap::kShared, rank, half);
    const StateDict fresh = trained.state();
    if (rank.rank() == 0) {
      check_equal(fresh["state.token.weight.step"].item<int>(), 0, "never stepped");
      check(!fresh.contains("state.token.weight.exp_avg"), "no moments yet");
      check(!fresh.contains("state.head.weight.step"), "not in the optimizer");
    }
    trained.train(0, 2);
    trained.load(fresh);  // Back to the beginning.
    const StateDict again = trained.state();
    if (rank.rank() == 0) check_same_state(again, fresh, "reset");
    Trained whole(Wrap::kShared, rank, two_groups);
    check_throws(ErrorKind::kInvalidArgument, "no parameters of the model", [&] {
      (void)trained.with_model(
          [&](auto& m) { return full_optimizer_state_dict(m, whole.optimizer()); });
    });
  });
}

}  // namespace convoy
