// Types of the user's own as arguments and results of units.
#include "convoy/ddp/ddp.h"
#include "convoy/fsdp/unit_checkpoint.h"
#include "mixed_runs.h"
#include "support/catch.h"

#include <optional>
#include <tuple>
#include <vector>

namespace taught {

/// Says how it is cast, and nothing else.
struct Batch {
  at::Tensor values;
  at::Tensor index;
};

inline void cast_tensors(Batch& batch, at::ScalarType dtype) {
  batch.values = batch.values.to(dtype);
}

/// Says how it is cast and what it holds.
struct Shown {
  at::Tensor values;
  int* casts = nullptr;
};

inline void cast_tensors(Shown& shown, at::ScalarType dtype) {
  ++*shown.casts;
  shown.values = shown.values.to(dtype);
}

inline void append_tensors(const Shown& shown, std::vector<at::Tensor>& out) {
  out.push_back(shown.values);
}

/// Says where its tensors are, which serves everything.
struct Visited {
  at::Tensor values;
  at::Tensor index;
};

inline void visit_tensors(Visited& visited, const convoy::SlotVisitor& visit) {
  visit(visited.values);
  visit(visited.index);
}

}  // namespace taught

namespace convoy {
namespace {

using namespace test;
using taught::Batch;
using taught::Shown;
using taught::Visited;

struct PassesVisitedImpl : torch::nn::Module {
  PassesVisitedImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  Visited forward(const Visited& one) {
    check(one.values.scalar_type() == weight.scalar_type(), "cast");
    return {weight * one.values.sin(), one.index};
  }
  torch::Tensor weight;
};
using PassesVisited = Unit<PassesVisitedImpl>;

struct TakesBatchImpl : torch::nn::Module {
  TakesBatchImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  torch::Tensor forward(const Batch& one, Batch copy, const std::vector<Batch>& list,
                        const std::optional<Batch>& maybe,
                        const std::tuple<int, Batch>& nested) const {
    for (const Batch& batch : {one, copy, list.at(0), *maybe, std::get<1>(nested)}) {
      check(batch.values.scalar_type() == weight.scalar_type(), "cast");
      check(batch.index.scalar_type() == at::kLong, "not cast");
    }
    return weight * one.values * copy.values;
  }
  torch::Tensor weight;
};
using TakesBatch = Unit<TakesBatchImpl>;

struct AnyBatchImpl : torch::nn::Module {
  AnyBatchImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  template <typename T>
  torch::Tensor forward(const T& one) {
    check(one.values.scalar_type() == weight.scalar_type(), "cast");
    return weight * one.values;
  }
  torch::Tensor weight;
};
using AnyBatch = Unit<AnyBatchImpl, any_forward>;

}  // namespace

TEST_CASE("a type that says how it is cast is cast however it is passed") {
  ranks(2, [](Rank& rank) {
    for (const bool shared : {true, false}) {
      const fsdp::Options options{.shared_gather = shared,
                                  .mixed_precision = {.param_dtype = at::kBFloat16}};
      TakesBatch model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
      const Batch batch{torch::ones({3}), torch::zeros({2}, torch::kLong)};
      const auto y = model(batch, batch, std::vector<Batch>{batch}, std::optional<Batch>(batch),
                           std::tuple<int, Batch>(1, batch));
      check(y.scalar_type() == at::kBFloat16, "computed in bfloat16");
      check(batch.values.scalar_type() == at::kFloat, "the caller's own stays as it was");
      AnyBatch any;
      FullyShardedDataParallel any_fsdp(any, rank.comm_ptr(), options);
      any(batch);
      check(batch.values.scalar_type() == at::kFloat, "the caller's own stays as it was");
    }
  });
}

TEST_CASE("a type that shows its tensors is copied only where one of them is cast") {
  ranks(1, [](Rank& rank) {
    AnyBatch any;
    FullyShardedDataParallel fsdp(any, rank.comm_ptr(),
                                  {.mixed_precision = {.param_dtype = at::kBFloat16}});
    int casts = 0;
    const Shown given{torch::ones({3}), &casts};
    any(given);
    check_equal(casts, 1, "casts");
    const Shown right{torch::ones({3}, at::kBFloat16), &casts};
    any(right);
    check_equal(casts, 1, "casts of what has the dtype");
  });
}

TEST_CASE("one function teaches FSDP and DDP and casts and checkpoints a type") {
  const Visited given{torch::ones({3}), torch::zeros({2}, torch::kLong)};
  const auto expected = given.values.sin();
  ranks(2, [&](Rank& rank) {
    for (const bool checkpointed : {false, true}) {
      for (const bool shared : {true, false}) {
        for (const bool mixed : {false, true}) {
          PassesVisited model;
          if (checkpointed) checkpoint_units(model, wrap_every_unit());
          fsdp::Options options{.shared_gather = shared};
          if (mixed)
            options.mixed_precision = {.param_dtype = at::kBFloat16, .output_dtype = at::kFloat};
          FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
          const Visited result = model(given);
          check(result.values.scalar_type() == at::kFloat, "cast on the way out");
          check(given.values.scalar_type() == at::kFloat, "the caller's own stays as it was");
          result.values.sum().backward();
          for (const ShardSpan& span : fsdp.shard_spans()) {
            check(span.numel == 0 || mixed ||
                      same_bits(span.leaf.grad(), expected.narrow(0, span.begin, span.numel)),
                  "gradient");
          }
        }
      }
      PassesVisited model;
      if (checkpointed) checkpoint_units(model, wrap_every_unit());
      DistributedDataParallel ddp(model, rank.comm_ptr(), {.find_unused_parameters = true});
      ddp(given).values.sum().backward();
      check_same_bits(model->weight.grad(), expected, "gradient under DDP");
    }
  });
}

}  // namespace convoy
