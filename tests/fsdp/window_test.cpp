// Who may write when: steps, edits, evaluations between, and what happens to a write out of turn.
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

torch::Tensor input_of(int rank, int step = 0) {
  return torch::full({2, 6}, 0.3F + 0.1F * static_cast<float>(rank) + 0.01F * float(step));
}

Stack make_stack() {
  Stack model(2);
  seed_parameters(*model, 9);
  return model;
}

}  // namespace

TEST_CASE("C042: evaluations between training steps hold nothing and change nothing") {
  for (const bool shared : {true, false}) {
    StateDict expected;
    {
      Stack model = make_stack();
      model->layers[1]->up->weight.set_requires_grad(false);
      const auto parameters = model->parameters();
      torch::optim::SGD optimizer(parameters, torch::optim::SGDOptions(0.125));
      for (int step = 0; step < 3; ++step) {
        if (step == 1) model->layers[1]->up->weight.set_requires_grad(true);
        mean_gradients(parameters, 2,
                       [&](int rank) { model(input_of(rank, step)).square().mean().backward(); });
        optimizer.step();
      }
      expected = plain_state(model);
    }
    ranks(2, [&](Rank& rank) {
      Stack model = make_stack();
      model->layers[1]->up->weight.set_requires_grad(false);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125));
      for (int step = 0; step < 3; ++step) {
        if (step == 1) model->layers[1]->up->weight.set_requires_grad(true);
        model(input_of(rank.rank(), step)).square().mean().backward();
        if (step == 0) {
          check(!model->layers[1]->up->weight.grad().defined(), "frozen: no gradient");
        }
        optimizer.step();
        optimizer.zero_grad();
        for (int evaluation = 0; evaluation < 20; ++evaluation) {
          const torch::NoGradGuard no_grad;
          model(input_of(rank.rank(), evaluation));
          for (const auto& unit : fsdp.units()) {
            check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " after an evaluation");
          }
          for (const ShardSpan& span : fsdp.shard_spans()) {
            check_equal(span.leaf.numel(), span.numel, span.name + " after an evaluation");
          }
        }
      }
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, expected, path_name(shared));
    });
  }
}

TEST_CASE("an evaluation between backward and step is found out on all ranks") {
  ranks(3, [](Rank& rank) {
    Stack model = make_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125));
    model(input_of(rank.rank())).square().mean().backward();
    {
      const torch::NoGradGuard no_grad;
      model(input_of(rank.rank()));  // closes the window
    }
    meet(rank, "after the evaluation");
    if (rank.rank() == 1) optimizer.step();  // out of turn, and unseen by versions
    try {
      model(input_of(rank.rank())).square().mean().backward();
      check(false, "a write while others read must be an error on every rank");
    } catch (const Error& error) {
      check(std::string(error.what()).find("rank 1 wrote to parameter") != std::string::npos,
            error.what());
    }
  });
}

TEST_CASE("a step between forward and backward is found out on all ranks") {
  for (const bool bumps_version : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      const auto old_loss = model(input_of(rank.rank())).square().mean();
      meet(rank, "after forward");
      if (rank.rank() == 1) {
        const torch::NoGradGuard no_grad;
        for (auto parameter : model->parameters()) {
          if (bumps_version) parameter.mul_(1.5);
          if (!bumps_version) parameter.data().mul_(1.5);  // as torch::optim::SGD does
        }
      }
      std::string text;
      try {
        old_loss.backward();
      } catch (const std::exception& error) {
        text = error.what();
      }
      check(text.find("rank 1 wrote to parameter") != std::string::npos, "found out: " + text);
    });
  }
}

TEST_CASE("edit() lets every rank write its shards around an evaluation") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Stack model = make_stack();
      Stack reference = make_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto x = input_of(0);
      const torch::NoGradGuard no_grad;
      const auto original = reference(x);
      for (auto& parameter : reference->parameters()) parameter.mul_(0.5);
      const auto halved = reference(x);
      for (int round = 0; round < 4; ++round) {
        check_same_bits(model(x), original, "before");
        {
          const auto scope = fsdp.edit();
          for (auto& parameter : model->parameters()) parameter.mul_(0.5);
        }
        check_same_bits(model(x), halved, "the edit is seen on every rank");
        {
          const auto scope = fsdp.edit();
          for (auto& parameter : model->parameters()) parameter.mul_(2.0);
        }
      }
    });
  }
}

TEST_CASE("edit() and settle() inside a forward are refused") {
  ranks(1, [](Rank& rank) {
    Stack model = make_stack();
    std::function<void()> inside;
    model->body = [&](StackImpl&, torch::Tensor x) {
      inside();
      return x;
    };
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    inside = [&] { const auto scope = fsdp.edit(); };
    check_throws(ErrorKind::kMisuse, "edit()", [&] { model(input_of(0)); });
    inside = [&] { fsdp.settle(); };
    check_throws(ErrorKind::kMisuse, "settle()", [&] { model(input_of(0)); });
  });
}

TEST_CASE("after settle() one rank may evaluate alone while the others wait for it") {
  ranks(3, [](Rank& rank) {
    Stack model = make_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125));
    for (int step = 0; step < 3; ++step) {
      model(input_of(rank.rank(), step)).square().mean().backward();
      optimizer.step();
      optimizer.zero_grad();
      fsdp.settle();
      if (rank.rank() == step) {
        const torch::NoGradGuard no_grad;
        for (int i = 0; i < 5; ++i) model(input_of(0, i));
      }
      rank.comm().barrier()->wait();
    }
  });
}

TEST_CASE("a rank that is done may leave while another still evaluates") {
  ranks(2, [](Rank& rank) {
    Stack model = make_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.125));
    model(input_of(rank.rank())).square().mean().backward();
    optimizer.step();
    if (rank.rank() == 1) return;  // gone, with its window open
    const torch::NoGradGuard no_grad;
    std::this_thread::sleep_for(50ms);
    for (int i = 0; i < 3; ++i) model(input_of(0, i));
  });
}

TEST_CASE(
    "C044: ranks may use different units: gradients are defined everywhere if used anywhere") {
  const auto run = [](Stack& model, int rank, int step) {
    model->body = [rank](StackImpl& self, torch::Tensor x) {
      return self.layers[static_cast<std::size_t>(rank == 0 ? 0 : 1)](x);
    };
    return model(input_of(rank, step)).square().mean();
  };
  StateDict expected;
  {
    Stack model(3);
    seed_parameters(*model, 9);
    const auto parameters = model->parameters();
    const auto optimizer = exact_sgd(parameters);
    for (int step = 0; step < 3; ++step) {
      mean_gradients(parameters, 3, [&](int rank) { run(model, rank, step).backward(); });
      optimizer->step();
    }
    expected = plain_state(model);
  }
  ranks(3, [&](Rank& rank) {
    Stack model(3);
    seed_parameters(*model, 9);
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto optimizer = exact_sgd(model->parameters());
    for (int step = 0; step < 3; ++step) {
      run(model, rank.rank(), step).backward();
      check(model->layers[0]->up->weight.grad().defined(), "used on rank 0");
      check(model->layers[1]->up->weight.grad().defined(), "used on ranks 1 and 2");
      check(!model->layers[2]->up->weight.grad().defined(), "used nowhere");
      optimizer->step();
      optimizer->zero_grad();
    }
    const StateDict state = full_state_dict(fsdp);
    if (rank.rank() == 0) check_same_state(state, expected);
  });
}

TEST_CASE("C043: a unit that is skipped, or whose output is dropped, keeps its bytes") {
  for (const bool skip : {true, false}) {
    for (const bool shared : {true, false}) {
      ranks(2, [&](Rank& rank) {
        Stack model(3);
        seed_parameters(*model, 9);
        model->body = [skip](StackImpl& self, torch::Tensor x) {
          x = self.layers[0](x);
          if (!skip) self.layers[1](x);
          return self.layers[2](x);
        };
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
        torch::optim::AdamW optimizer(model->parameters(),
                                      torch::optim::AdamWOptions(0.1).weight_decay(0.5));
        const auto before = model->layers[1]->up->weight.detach().clone();
        for (int step = 0; step < 3; ++step) {
          model(input_of(rank.rank(), step)).square().mean().backward();
          check(!model->layers[1]->up->weight.grad().defined(), "undefined");
          optimizer.step();
          optimizer.zero_grad();
          for (const auto& unit : fsdp.units()) {
            check_equal(unit.resident_bytes, std::int64_t{0}, unit.name);
          }
        }
        check_same_bits(model->layers[1]->up->weight.detach(), before, "no decay either");
      });
    }
  }
}

}  // namespace convoy
