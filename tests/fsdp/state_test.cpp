// Wrapping, describing, saving and loading: what is compared, broadcast, reported and restored.
#include "convoy/fsdp/model_helpers.h"
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

namespace convoy {
namespace {

using namespace test;

// Parameters of shapes [5,3], [7], [1] and [], and a buffer.
struct RaggedImpl : torch::nn::Module {
  RaggedImpl()
      : matrix(register_parameter("matrix", torch::zeros({5, 3}))),
        vector(register_parameter("vector", torch::zeros({7}))),
        one(register_parameter("one", torch::zeros({1}))),
        scalar(register_parameter("scalar", torch::zeros({}))),
        count(register_buffer("count", torch::zeros({2}, torch::kLong))) {}
  torch::Tensor forward(torch::Tensor x) {
    return (torch::tanh(x.matmul(matrix)).sum() * one + vector.square().sum()) * (scalar + 1);
  }
  torch::Tensor matrix, vector, one, scalar, count;
};
using Ragged = Unit<RaggedImpl>;

Training<Ragged> ragged_training(MakeOptimizer optimizer) {
  return {
      .make =
          [] {
            Ragged model;
            seed_parameters(*model, 2);
            return model;
          },
      .loss =
          [](Ragged& model, int rank, int step) {
            return model(torch::full({2, 5}, 0.1F * float(rank + 1) + 0.01F * float(step))).sum();
          },
      .optimizer = std::move(optimizer),
      .steps = 5};
}

}  // namespace

TEST_CASE("C028: ragged sizes and fewer elements than ranks") {
  check_parity(ragged_training(exact_sgd), 4);
  const auto adam = ragged_training([](auto p) {
    return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.05));
  });
  const StateDict expected = train_alone(adam, 4);
  for (const bool shared : {true, false}) {
    check_close_state(train_sharded(adam, 4, {.shared_gather = shared}), expected, 1e-6);
  }
}

TEST_CASE("C028: a ragged model is saved and loaded in another world") {
  StateDict saved;
  ranks(4, [&](Rank& rank) {
    Ragged model;
    seed_parameters(*model, 2);
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    StateDict state = full_state_dict(fsdp);
    check_equal(state.size(), std::size_t(rank.rank() == 0 ? 5 : 0), "names with the buffer");
    if (rank.rank() == 0) saved = std::move(state);
  });
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Ragged model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      load_full_state_dict(fsdp, rank.rank() == 0 ? saved : StateDict());
      const StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, saved, "loaded");
    });
  }
}

TEST_CASE("C066: a world of one trains as no wrapper does, and saves and loads unchanged") {
  const auto training = ragged_training(exact_sgd);
  const StateDict expected = train_alone(training, 1);
  for (const bool shared : {true, false}) {
    check_same_state(train_sharded(training, 1, {.shared_gather = shared}), expected);
    ranks(1, [&](Rank& rank) {
      Ragged model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      load_full_state_dict(fsdp, expected);
      check_same_state(full_state_dict(fsdp), expected, "loaded and saved");
      check_same_bits(model->matrix.detach(), expected["matrix"], "a shard that is all");
    });
  }
}

TEST_CASE("rank 0's parameters and buffers are everybody's, and shapes are compared first") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Ragged model, first;
      seed_parameters(*model, static_cast<std::uint64_t>(100 + rank.rank()));
      seed_parameters(*first, 100);
      model->count.fill_(rank.rank() + 5);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = shared});
      for (const ShardSpan& span : fsdp.shard_spans()) {
        const auto whole = first->named_parameters()[span.name].detach().flatten();
        check_same_bits(span.leaf.detach().flatten(), whole.narrow(0, span.begin, span.numel),
                        span.name);
      }
      check_equal(model->count[0].item<std::int64_t>(), std::int64_t{5}, "buffer");
    });
  }
}

TEST_CASE("models that differ are named in one text on every rank") {
  std::array<std::string, 3> texts;
  const auto wrap = [&](Rank& rank, auto model, fsdp::Options options = {}) {
    const Error error = check_throws(ErrorKind::kMismatch, "rank 1", [&] {
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
    });
    texts[static_cast<std::size_t>(rank.rank())] = error.what();
  };
  const auto check_texts = [&](const std::string& part) {
    INFO(texts[0]);
    CHECK(texts[0] == texts[1]);
    CHECK(texts[1] == texts[2]);
    CHECK(texts[0].find(part) != std::string::npos);
  };
  ranks(3, [&](Rank& rank) {
    TinyGptConfig config;
    if (rank.rank() == 1) config.hidden += 1;
    wrap(rank, TinyGpt(config));
  });
  check_texts("blocks.0.up.weight");
  ranks(3, [&](Rank& rank) {
    TinyGpt model;
    if (rank.rank() == 1) model->parameters()[3].set_requires_grad(false);
    wrap(rank, model);
  });
  check_texts("frozen");
  ranks(3, [&](Rank& rank) { wrap(rank, TinyGpt(), {.shared_gather = rank.rank() != 1}); });
  check_texts("shared_gather");
}

TEST_CASE("loading refuses what does not fit, on every rank, before anything changes") {
  ranks(2, [](Rank& rank) {
    Ragged model;
    seed_parameters(*model, 2);
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const StateDict good = full_state_dict(fsdp);
    const auto load = [&](const std::function<void(StateDict&)>& spoil) {
      StateDict state;
      for (const auto& item : good) state.insert(item.key(), item.value());
      if (rank.rank() == 0) spoil(state);
      load_full_state_dict(fsdp, state);
    };
    check_throws(ErrorKind::kInvalidArgument, "'vector' is missing",
                 [&] { load([](StateDict& state) { state.erase("vector"); }); });
    check_throws(ErrorKind::kInvalidArgument, "'extra' is not in the model",
                 [&] { load([](StateDict& state) { state.insert("extra", torch::zeros({1})); }); });
    check_throws(ErrorKind::kInvalidArgument, "'matrix' has shape [3, 5]", [&] {
      load([](StateDict& state) { state["matrix"] = torch::zeros({3, 5}); });
    });
    check_throws(ErrorKind::kInvalidArgument, "'matrix' is a SparseCPUFloatType", [&] {
      load([](StateDict& state) { state["matrix"] = torch::ones({5, 3}).to_sparse(); });
    });
    check_throws(ErrorKind::kInvalidArgument, "'vector' is Long, the model has Float", [&] {
      load([](StateDict& state) { state["vector"] = torch::ones({7}, torch::kLong); });
    });
    check_throws(ErrorKind::kInvalidArgument, "'count' is Float, the model has Long",
                 [&] { load([](StateDict& state) { state["count"] = torch::ones({2}); }); });
    const StateDict after = full_state_dict(fsdp);
    if (rank.rank() == 0) check_same_state(after, good, "nothing has changed");
    load([](StateDict& state) { state["scalar"] = torch::tensor(3.0, torch::kDouble); });
    const StateDict loaded = full_state_dict(fsdp);
    if (rank.rank() == 0) check_equal(loaded["scalar"].item<float>(), 3.0F, "converted");
  });
}

TEST_CASE("full parameters are streamed in registration order under their own names") {
  ranks(2, [](Rank& rank) {
    TinyGpt model;
    seed_parameters(*model, 8);
    std::vector<std::string> names;
    for (const auto& item : model->named_parameters()) names.push_back(item.key());
    const StateDict expected = plain_state(model);
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), {.shared_gather = false});
    std::vector<std::string> visited;
    for_each_full_parameter(fsdp, [&](const std::string& name, const at::Tensor& full) {
      visited.push_back(name);
      check_same_bits(full, expected[name], name);
      int full_units = 0;
      for (const auto& unit : fsdp.units()) full_units += unit.resident_bytes > 0 ? 1 : 0;
      check(full_units <= 1, "one unit at a time");
    });
    if (rank.rank() == 0) check(visited == names, "order");
    if (rank.rank() != 0) check(visited.empty(), "only rank 0 visits");
  });
}

TEST_CASE("counts and decay groups do not depend on sharding") {
  TinyGpt plain;
  const auto count = count_parameters(*plain);
  const auto split = split_by_decay(*plain);
  ranks(4, [&](Rank& rank) {
    TinyGpt model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    check_equal(count_parameters(*model), count, "count");
    check_equal(split_by_decay(*model).decay.size(), split.decay.size(), "decay");
    check_equal(split_by_decay(*model).no_decay.size(), split.no_decay.size(), "no decay");
    std::int64_t held = 0, spans = 0;
    for (const ShardSpan& span : fsdp.shard_spans()) {
      held += span.numel;
      ++spans;
      check_equal(span.leaf.numel(), span.numel, span.name);
      check(!span.replicated, span.name);
    }
    const at::Tensor total = torch::full({1}, held, torch::kLong);
    rank.comm().all_reduce(total)->wait();
    check_equal(total.item<std::int64_t>(), count, "the shards are the whole");
    check_equal(spans, static_cast<std::int64_t>(model->parameters().size()), "spans");
  });
}

TEST_CASE("describe() shows units, bytes and padding") {
  ranks(2, [](Rank& rank) {
    TinyGpt model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr());
    const std::string text = fsdp.describe();
    for (const char* part : {"(root)", "blocks.0", "blocks.2", "total", "shared gather", "rows"}) {
      check(text.find(part) != std::string::npos, concat(part, " is in\n", text));
    }
    std::int64_t numel = 0;
    for (const auto& unit : fsdp.units()) {
      numel += unit.numel;
      check_equal(unit.shard_bytes * 2, unit.full_bytes, unit.name);
      check_equal(unit.full_bytes, 4 * (unit.numel + unit.padding_numel), unit.name);
    }
    check_equal(numel, count_parameters(*model), "all parameters");
  });
}

TEST_CASE("frozen parameters and frozen units train the rest as in one process") {
  auto training = tiny_training();
  const auto make = training.make;
  training.make = [make] {
    TinyGpt model = make();
    for (auto& item : model->named_parameters()) {
      // A block that is frozen, one that is half frozen (adapters over frozen weights), embeddings.
      const bool frozen =
          item.key().starts_with("blocks.0.") ||
          (item.key().starts_with("blocks.1.") && item.key().find("up.") == std::string::npos) ||
          item.key().starts_with("token.");
      if (frozen) item.value().set_requires_grad(false);
    }
    return model;
  };
  check_parity(training, 3);
}

TEST_CASE("the trace shows gathers and reductions by unit, and the backward") {
  auto options = short_timeout();
  auto sink = std::make_shared<trace::MemorySink>();
  options.trace = sink;
  ranks(
      2,
      [](Rank& rank) {
        TinyGpt model;
        FullyShardedDataParallel fsdp(model, rank.comm_ptr());
        const TinyBatch batch = tiny_batch(rank.rank(), 0);
        tiny_loss(model(batch.tokens), batch.targets).backward();
      },
      options);
  const auto count = [&](std::string_view name, std::string_view detail) {
    int found = 0;
    for (const auto& event : sink->events()) {
      const bool counts = event.category == "comm" || event.category == "compute";
      found += counts && event.name == name && event.detail == detail ? 1 : 0;
    }
    return found;
  };
  CHECK(count("gather", "blocks.1") == 4);  // forward and backward on two ranks
  CHECK(count("reduce_scatter", "blocks.1") == 2);
  CHECK(count("backward", "") == 2);
}

}  // namespace convoy
