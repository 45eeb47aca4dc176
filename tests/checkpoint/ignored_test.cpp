// Parameters that FSDP ignores are saved and loaded whole, with the state of their optimizer.
#include "convoy/ddp/ddp.h"
#include "convoy/model_checkpoint.h"
#include "convoy/optim/adamw.h"
#include "fsdp/harness.h"
#include "support/catch.h"
#include "train_gpt/scratch.h"

namespace convoy {
namespace {

using namespace test;
using testing::Scratch;

enum class Kept { kFrozen, kTrained };

/// Two layers of which one is ignored, and a buffer.
struct HalfShardedImpl : torch::nn::Module {
  HalfShardedImpl()
      : body(register_module("body", torch::nn::Linear(7, 5))),
        head(register_module("head", torch::nn::Linear(5, 3))),
        scale(register_buffer("scale", torch::ones({1}))) {}
  torch::Tensor forward(const torch::Tensor& x) { return head(torch::tanh(body(x))) * scale; }
  torch::nn::Linear body, head;
  torch::Tensor scale;
};
using HalfSharded = Unit<HalfShardedImpl>;

HalfSharded make_model(Kept kept, std::uint64_t seed) {
  HalfSharded model;
  seed_parameters(*model, seed);
  if (kept == Kept::kFrozen) {
    for (auto& parameter : model->head->parameters()) parameter.requires_grad_(false);
  }
  return model;
}

optim::AdamW make_optimizer(const HalfSharded& model) {
  std::vector<at::Tensor> trained;
  for (const auto& parameter : model->parameters()) {
    if (parameter.requires_grad()) trained.push_back(parameter);
  }
  return optim::AdamW(std::move(trained), optim::AdamWOptions{.lr = 1e-2});
}

/// The same batches on all ranks, so that an ignored parameter stays the same on all.
void train(HalfSharded& model, optim::AdamW& optimizer, int first, int last) {
  for (int step = first; step < last; ++step) {
    const auto x = torch::arange(14, torch::kFloat).view({2, 7}).sin() * (step + 1);
    model(x).square().mean().backward();
    optimizer.step();
    optimizer.zero_grad();
  }
}

fsdp::Options ignoring(bool shared) {
  return {.shared_gather = shared, .ignored = parameters_named("head.*")};
}

template <class Model>
void save_both(const Scratch& scratch, const Model& model, const optim::AdamW& optimizer) {
  save_model(scratch.path() / "model", model);
  save_optimizer(scratch.path() / "optimizer", model, optimizer);
}

template <class Model>
void load_both(const Scratch& scratch, Model& model, optim::AdamW& optimizer) {
  load_model(scratch.path() / "model", model);
  load_optimizer(scratch.path() / "optimizer", model, optimizer);
}

std::string bytes_of(const Scratch& scratch, const char* file) {
  return testing::read_whole(scratch.path() / file);
}

/// Every rank has the ignored parameters of the file, not only the one that read it.
void check_head(const HalfSharded& model, const StateDict& file) {
  for (const auto& item : model->head->named_parameters()) {
    check_same_bits(item.value().detach(), file["head." + item.key()], item.key());
  }
}

}  // namespace

TEST_CASE("checkpoint: ignored parameters frozen or trained resume with the bits of a whole run") {
  for (const int world : {1, 2, 3}) {
    for (const bool shared : {true, false}) {
      for (const Kept kept : {Kept::kFrozen, Kept::kTrained}) {
        CAPTURE(world, shared, kept == Kept::kFrozen);
        const Scratch middle, end, resumed;
        ranks(world, [&](Rank& rank) {
          HalfSharded model = make_model(kept, 1);
          FullyShardedDataParallel fsdp(model, rank.comm_ptr(), ignoring(shared));
          optim::AdamW adam = make_optimizer(model);
          train(model, adam, 0, 3);
          save_both(middle, fsdp, adam);
          train(model, adam, 3, 6);
          save_both(end, fsdp, adam);
        });
        const StateDict file = load_safetensors(middle.path() / "model");
        const StateDict state = load_safetensors(middle.path() / "optimizer");
        CHECK(file.size() == 5);
        CHECK(state.size() == (kept == Kept::kFrozen ? 6 : 12));  // A step and two moments each.
        ranks(world, [&](Rank& rank) {
          HalfSharded model = make_model(kept, 2 + static_cast<std::uint64_t>(rank.rank()));
          FullyShardedDataParallel fsdp(model, rank.comm_ptr(), ignoring(shared));
          optim::AdamW adam = make_optimizer(model);
          load_both(middle, fsdp, adam);
          check_head(model, file);
          train(model, adam, 3, 6);
          save_both(resumed, fsdp, adam);
          check_head(model, load_safetensors(end.path() / "model"));
        });
        CHECK(bytes_of(resumed, "model") == bytes_of(end, "model"));
        CHECK(bytes_of(resumed, "optimizer") == bytes_of(end, "optimizer"));
      }
    }
  }
}

TEST_CASE("checkpoint: an ignored parameter that not all ranks have stepped is named on all") {
  const Scratch scratch;
  ranks(2, [&](Rank& rank) {
    HalfSharded model = make_model(Kept::kTrained, 1);
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), ignoring(true));
    optim::AdamW adam = make_optimizer(model);
    train(model, adam, 0, 1);
    model(torch::ones({2, 7})).square().mean().backward();
    if (rank.rank() == 1) model->head->weight.mutable_grad().reset();
    adam.step();
    save_model(scratch.path() / "model", fsdp);  // Values are rank 0's.
    check_throws(ErrorKind::kMismatch, "'head.weight' on rank 1 is at step 1",
                 [&] { save_optimizer(scratch.path() / "optimizer", fsdp, adam); });
  });
}

TEST_CASE("checkpoint: what FSDP saved with ignored parameters goes on under DDP and back") {
  for (const Kept kept : {Kept::kFrozen, Kept::kTrained}) {
    const Scratch first, again, back;
    ranks(2, [&](Rank& rank) {
      HalfSharded model = make_model(kept, 1);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), ignoring(rank.size() > 1));
      optim::AdamW adam = make_optimizer(model);
      train(model, adam, 0, 3);
      save_both(first, fsdp, adam);
      train(model, adam, 3, 6);
      save_both(back, fsdp, adam);
    });
    ranks(2, [&](Rank& rank) {
      HalfSharded model = make_model(kept, 5);
      DistributedDataParallel ddp(model, rank.comm_ptr());
      optim::AdamW adam = make_optimizer(model);
      load_both(first, ddp, adam);
      save_both(again, ddp, adam);
      const auto last = load_safetensors(back.path() / "model");
      for (int step = 3; step < 6; ++step) {
        const auto x = torch::arange(14, torch::kFloat).view({2, 7}).sin() * (step + 1);
        ddp(x).square().mean().backward();
        adam.step();
        adam.zero_grad();
      }
      check_same_state(plain_state(model), last, "three more steps under DDP");
    });
    CHECK(bytes_of(again, "model") == bytes_of(first, "model"));
    CHECK(bytes_of(again, "optimizer") == bytes_of(first, "optimizer"));
  }
}

}  // namespace convoy
