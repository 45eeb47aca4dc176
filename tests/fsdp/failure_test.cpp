// Exceptions in forward and backward leave nothing behind, and peers hear of them.
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

torch::Tensor input_of(int rank) { return torch::full({2, 6}, 0.5F + static_cast<float>(rank)); }

void check_all_sharded(const fsdp::FullySharded& fsdp, const std::string& when) {
  for (const auto& unit : fsdp.units()) {
    check_equal(unit.resident_bytes, std::int64_t{0}, unit.name + " " + when);
  }
  for (const ShardSpan& span : fsdp.shard_spans()) {
    check_equal(span.leaf.numel(), span.numel, span.name + " shows its shard " + when);
  }
}

// Gradients of one ordinary backward, for comparing after a failure.
std::vector<at::Tensor> gradients(Stack& model, int rank) {
  model->zero_grad();
  model(input_of(rank)).square().mean().backward();
  std::vector<at::Tensor> all;
  for (const auto& parameter : model->parameters()) all.push_back(parameter.grad().clone());
  return all;
}

}  // namespace

TEST_CASE("an exception in forward reshards everything and leaves nothing behind") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model;
      seed_parameters(*model, 1);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto before = gradients(model, rank.rank());
      const auto body = model->body;
      for (const int fail_at : {0, 1, 2}) {
        model->body = [fail_at](StackImpl& self, torch::Tensor x) {
          for (int i = 0; i < 3; ++i) {
            x = self.layers[static_cast<std::size_t>(i)](x);
            if (i == fail_at) throw std::runtime_error("user error");
          }
          return x;
        };
        bool threw = false;
        try {
          model(input_of(rank.rank()));
        } catch (const std::runtime_error&) {
          threw = true;
        }
        check(threw, "the user's exception comes through");
        for (const ShardSpan& span : fsdp.shard_spans()) {
          check_equal(span.leaf.numel(), span.numel, span.name);
        }
        model->body = body;
        const auto after = gradients(model, rank.rank());
        for (std::size_t i = 0; i < after.size(); ++i) check_same_bits(after[i], before[i]);
        check_all_sharded(fsdp, "after the next backward");
      }
    });
  }
}

TEST_CASE("an exception in backward drops its partial sums: alone, training goes on") {
  for (const bool local : {false, true}) {
    ranks(1, [&](Rank& rank) {
      Stack model;
      seed_parameters(*model, 1);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
      const auto before = gradients(model, 0);
      bool fail = true;
      model->layers[0]->down->weight.register_hook([&](torch::Tensor) {
        if (fail) throw std::runtime_error("user error");
      });
      bool threw = false;
      try {
        std::optional<fsdp::NoSync> pause;
        if (local) pause.emplace(fsdp.no_sync());
        model(input_of(0)).square().mean().backward();
      } catch (const std::runtime_error& error) {
        threw = std::string(error.what()).find("user error") != std::string::npos;
      }
      check(threw, "the user's exception comes through");
      check_all_sharded(fsdp, "after the failure");
      check_equal(fsdp.local_gradient_bytes(), std::int64_t{0}, "partial sums");
      fail = false;
      const auto after = gradients(model, 0);
      for (std::size_t i = 0; i < after.size(); ++i) check_same_bits(after[i], before[i]);
    });
  }
}

TEST_CASE("a backward that fails on one rank fails all, naming the rank, without waiting") {
  for (const bool shared : {true, false}) {
    const auto begin = std::chrono::steady_clock::now();
    ranks(3, [&](Rank& rank) {
      Stack model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      model(input_of(rank.rank())).square().mean().backward();
      if (rank.rank() == 1) {
        model->layers[1]->up->bias.register_hook(
            [](torch::Tensor) { throw std::runtime_error("user error"); });
      }
      const auto loss = model(input_of(rank.rank())).square().mean();
      meet(rank, "before backward");
      if (rank.rank() == 1) {
        bool threw = false;
        try {
          loss.backward();
        } catch (const std::runtime_error& error) {
          threw = std::string(error.what()).find("user error") != std::string::npos;
        }
        check(threw, "the failing rank sees its own exception");
      } else {
        try {
          loss.backward();
          check(false, "the peers must fail too");
        } catch (const Error& error) {
          check(std::string(error.what()).find("rank 1") != std::string::npos, error.what());
        }
      }
      check_all_sharded(fsdp, "after the failure");
      check_throws(ErrorKind::kFailed, "rank 1", [&] { fsdp.communicator()->barrier()->wait(); });
      for (int again = 0; again < 2; ++again) {
        check_throws(ErrorKind::kFailed, "rank 1", [&] { model(input_of(0)); });
      }
    });
    CHECK(std::chrono::steady_clock::now() - begin < 30s);
  }
}

TEST_CASE("a rank that skips a backward is found at its next one, not at the end of the run") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      const auto step = [&](bool skips) {
        const auto loss = model(input_of(rank.rank())).square().mean();
        if (!skips) loss.backward();
      };
      step(false);
      // Rank 1 would be one step ahead from here on, and nobody the wiser until the end.
      check_throws(ErrorKind::kMismatch, shared ? "after 2 forwards" : "all_gather", [&] {
        step(/*skips=*/rank.rank() == 1);
        step(false);
      });
      check_all_sharded(fsdp, "after the failure");
    });
  }
}

TEST_CASE("forwards that are a rank's own business do not count") {
  ranks(2, [](Rank& rank) {
    Stack model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const auto loss = [&] { return model(input_of(rank.rank())).square().mean(); };
    for (int step = 0; step < 3; ++step) {
      for (int i = 0; i < rank.rank(); ++i) {
        const auto pause = fsdp.no_sync();
        loss().backward();
      }
      loss().backward();
      model->zero_grad();
      fsdp.settle();
      if (rank.rank() != step % 2) continue;
      model->eval();
      loss();
      model->train();
    }
  });
}

TEST_CASE("memory that cannot be had leaves the model as it was") {
  ranks(2, [](Rank& rank) {
    Stack model;
    seed_parameters(*model, 1);
    // More memory than there is, for a parameter that no rank has ever touched.
    const auto huge = torch::empty({1}).expand({std::int64_t{1} << 40});
    model->layers[2]->register_parameter("huge", huge, /*requires_grad=*/false);
    const auto before = model->head->weight.detach().clone();
    try {
      FullyShardedDataParallel fsdp(model, rank.comm_ptr());
      check(false, "must fail");
    } catch (const Error& error) {
      check(error.kind() == ErrorKind::kMemory, error.what());
    }
    check_same_bits(model->head->weight.detach(), before, "still whole");
    const torch::NoGradGuard no_grad;
    check(model(input_of(0)).size(1) == 4, "still a plain module");
  });
}

TEST_CASE("a failure under no_sync with shared gathers is no business of the peers") {
  ranks(2, [](Rank& rank) {
    Scale model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    bool fail = rank.rank() == 0;
    model->weight.register_hook([&](torch::Tensor) {
      if (fail) throw std::runtime_error("user error");
    });
    try {
      const auto pause = fsdp.no_sync();
      model(100.0).backward();
    } catch (const std::runtime_error&) {
      check(fail, "only rank 0 fails");
    }
    fail = false;
    model->zero_grad();
    model(rank.rank() + 1.0).backward();
    check_same_bits(model->weight.grad(), torch::full(model->weight.sizes(), 1.5F));
  });
}

}  // namespace convoy
