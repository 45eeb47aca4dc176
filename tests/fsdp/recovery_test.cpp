// After an error that the program has caught: what works again, and what refuses by name.
#include "convoy/fsdp/full_params.h"
#include "harness.h"
#include "modules.h"
#include "stack_runs.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// Runs a forward whose body throws after `fail_at`.
void run_failing_forward(Stack& model, int rank, std::size_t fail_at) {
  const auto body = model->body;
  model->body = [fail_at](StackImpl& self, torch::Tensor x) {
    for (std::size_t i = 0; i < self.layers.size(); ++i) {
      x = self.layers[i](x);
      if (i == fail_at) throw std::runtime_error("user error");
    }
    return x;
  };
  bool threw = false;
  try {
    model(stack_input(rank, 0));
  } catch (const std::runtime_error&) {
    threw = true;
  }
  model->body = body;
  check(threw, "the user's exception comes through");
}

using Between = std::function<void(FullyShardedDataParallel<Stack>&, Stack&)>;

const std::vector<std::pair<std::string, Between>>& calls_between_steps() {
  static const std::vector<std::pair<std::string, Between>> kCalls = {
      {"edit", [](auto& fsdp, Stack&) { const auto scope = fsdp.edit(); }},
      {"settle", [](auto& fsdp, Stack&) { fsdp.settle(); }},
      {"summon", [](auto& fsdp, Stack&) { const auto scope = summon_full_params(fsdp); }},
      {"unshard",
       [](auto& fsdp, Stack&) {
         fsdp.unshard();
         fsdp.reshard();
       }},
      {"unshard one",
       [](auto& fsdp, Stack&) {
         fsdp.unshard("layer0");
         fsdp.reshard("layer0");
       }},
      {"set", [](auto& fsdp, Stack&) { fsdp.set_reshard_after_forward(true); }},
      {"save and load",
       [](auto& fsdp, Stack&) { load_full_state_dict(fsdp, full_state_dict(fsdp)); }},
      {"load alone",
       [](auto& fsdp, Stack&) { load_full_state_dict(fsdp, plain_state(make_seeded_stack())); }},
  };
  return kCalls;
}

std::string text_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const std::exception& error) {
    return error.what();
  }
  return {};
}

void write_everything(Stack& model) {
  const torch::NoGradGuard no_grad;
  for (auto parameter : model->parameters()) parameter.mul_(1.5);
}

}  // namespace

TEST_CASE("after a forward that threw everything between steps works") {
  for (const bool shared : {true, false}) {
    for (const int world : {1, 2, 3}) {
      ranks(world, [&](Rank& rank) {
        Stack model = make_seeded_stack();
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
        const auto x = stack_input(rank.rank(), 1);
        const auto expected = make_seeded_stack()(x);
        for (std::size_t i = 0; i < calls_between_steps().size(); ++i) {
          run_failing_forward(model, rank.rank(), i % 3);
          calls_between_steps()[i].second(fsdp, model);
          check_same_bits(model(x), expected, calls_between_steps()[i].first);
        }
      });
    }
  }
}

TEST_CASE("a forward that threw on one rank only gives the same error on all or none") {
  for (const std::size_t fail_at : {std::size_t{0}, std::size_t{2}}) {
    for (const auto& [name, call] : calls_between_steps()) {
      const auto begin = std::chrono::steady_clock::now();
      ranks(3, [&, call = call](Rank& rank) {
        Stack model = make_seeded_stack();
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
        const torch::NoGradGuard no_grad;
        const auto x = stack_input(rank.rank(), 1);
        const auto text = text_of([&] {
          if (rank.rank() == 1) {
            run_failing_forward(model, 1, fail_at);
          } else {
            model(x);
          }
          call(fsdp, model);
          check_same_bits(model(x), make_seeded_stack()(x), "a right result");
        });
        // Rank 1 has made every gather of the forward where it threw in the last unit.
        const bool same_gathers = fail_at == 2;
        const bool fails = text.find("all_gather") != std::string::npos;
        check(same_gathers ? text.empty() : fails, concat("rank ", rank.rank(), ": ", text));
      });
      INFO(name);
      CHECK(std::chrono::steady_clock::now() - begin < 20s);
    }
  }
}

TEST_CASE("after a write out of turn that the end of backward found training goes on guarded") {
  ranks(3, [](Rank& rank) {
    Stack model = make_seeded_stack();
    Stack reference = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    // Writes when backward has come to the input and needs the last layer no more.
    const auto step = [&](bool writes) {
      const auto x = stack_input(rank.rank(), 1).requires_grad_(true);
      x.register_hook([&](const torch::Tensor&) {
        if (writes && rank.rank() == 1) model->layers[2]->down->weight.data().mul_(2);
      });
      model(x).square().mean().backward();
    };
    const torch::Tensor x = stack_input(0, 2);
    for (int round = 0; round < 2; ++round) {
      const auto text = text_of([&] { step(/*writes=*/true); });
      check(text.find("rank 1 wrote to parameter 'layer2.down.weight'") != std::string::npos,
            "found: " + text);
      for (const auto& parameter : model->parameters()) {
        check(!parameter.grad().defined(), "the gradients of that backward are dropped");
      }
      // What was written counts, and now everybody may write.
      for (const ShardSpan& span : fsdp.shard_spans()) {
        if (span.name != "layer2.down.weight" || rank.rank() == 1) continue;
        const torch::NoGradGuard no_grad;
        span.leaf.mul_(2);
      }
      const torch::NoGradGuard no_grad;
      reference->layers[2]->down->weight.mul_(2);
      check_same_bits(model(x), reference(x), "what all have written");
      const torch::AutoGradMode with_graph(true);
      step(/*writes=*/false);
      for (auto& parameter : model->parameters()) parameter.mutable_grad().reset();
    }
  });
}

TEST_CASE("after a write out of turn that a gather found everything names it") {
  ranks(3, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    model(stack_input(rank.rank(), 0)).square().mean().backward();
    {
      const torch::NoGradGuard no_grad;
      model(stack_input(rank.rank(), 0));
    }
    meet(rank, "after the evaluation");
    if (rank.rank() == 1) write_everything(model);
    const auto again = [&] { model(stack_input(rank.rank(), 1)).square().mean().backward(); };
    check(text_of(again).find("rank 1 wrote to parameter") != std::string::npos, "found");
    for (int round = 0; round < 2; ++round) {
      check_throws(ErrorKind::kFailed, "rank 1 wrote to parameter", again);
      check_throws(ErrorKind::kFailed, "rank 1 wrote to parameter", [&] { fsdp.settle(); });
      check_throws(ErrorKind::kFailed, "rank 1 wrote to parameter",
                   [&] { const auto scope = fsdp.edit(); });
      check_throws(ErrorKind::kFailed, "rank 1 wrote to parameter",
                   [&] { const auto scope = summon_full_params(fsdp); });
    }
  });
}

TEST_CASE("a write out of turn in a world of one is said once") {
  ranks(1, [](Rank& rank) {
    Stack model = make_seeded_stack();
    Stack reference = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    for (int round = 0; round < 2; ++round) {
      const torch::NoGradGuard no_grad;
      model(stack_input(0, 0));
      write_everything(model);
      write_everything(reference);
      const auto text = text_of([&] { model(stack_input(0, 0)); });
      check(text.find("rank 0 wrote to parameter") != std::string::npos, "found: " + text);
      check_same_bits(model(stack_input(0, 0)), reference(stack_input(0, 0)), "what was written");
    }
  });
}

}  // namespace convoy
