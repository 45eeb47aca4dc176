// Mixed precision: what is cast at a unit's forward, what is kept, what stays exact, what is
// refused.
#include "mixed_runs.h"
#include "support/catch.h"

#include <map>
#include <optional>
#include <tuple>

namespace convoy {
namespace {

using namespace test;

constexpr auto kBf16 = at::kBFloat16;

fsdp::Options mixed_options(fsdp::MixedPrecision mixed, bool shared = true) {
  return {.shared_gather = shared, .mixed_precision = std::move(mixed)};
}

std::string error_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

void check_says(const std::string& text, const std::string& part) {
  check(text.find(part) != std::string::npos, "'" + text + "' does not say '" + part + "'");
}

using Several = std::tuple<torch::Tensor, std::optional<torch::Tensor>, std::vector<torch::Tensor>>;

// Remembers the dtypes that its forward saw.
struct LookImpl : torch::nn::Module {
  LookImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  std::map<std::string, torch::Tensor> forward(torch::Tensor value, const torch::Tensor& reference,
                                               torch::Tensor& changeable,
                                               const std::vector<torch::Tensor>& list,
                                               Several several,
                                               std::map<std::string, torch::Tensor> named,
                                               std::string text) {
    seen = {value.scalar_type(),
            reference.scalar_type(),
            changeable.scalar_type(),
            list[0].scalar_type(),
            list[1].scalar_type(),
            std::get<0>(several).scalar_type(),
            std::get<1>(several)->scalar_type(),
            std::get<2>(several)[0].scalar_type(),
            named.at(text).scalar_type()};
    changeable = torch::ones({1});
    return {{"sum", weight * value}, {"whole", list[1]}};
  }
  torch::Tensor weight;
  std::vector<at::ScalarType> seen;
};
using Look = Unit<LookImpl>;

struct AnyLookImpl : torch::nn::Module {
  AnyLookImpl() : weight(register_parameter("weight", torch::ones({3}))) {}
  torch::Tensor forward(torch::Tensor x) { return weight * x; }
  template <typename Scale>
  torch::Tensor forward(torch::Tensor x, const Scale& scale) {
    scale_dtype = scale.scalar_type();
    return weight * x * scale;
  }
  torch::Tensor weight;
  at::ScalarType scale_dtype = at::kFloat;
};
using AnyLook = Unit<AnyLookImpl, any_forward>;

// A norm and a linear layer, each a unit.
struct NormUnitImpl : torch::nn::LayerNormImpl {
  NormUnitImpl() : LayerNormImpl(torch::nn::LayerNormOptions({6})) {}
  torch::Tensor forward(const torch::Tensor& x) {
    input = x.scalar_type();
    return LayerNormImpl::forward(x);
  }
  at::ScalarType input = at::kInt;
};
using NormUnit = Unit<NormUnitImpl>;
using LinearUnit = Unit<torch::nn::LinearImpl>;

struct NormsImpl : torch::nn::Module {
  NormsImpl()
      : norm(register_module("norm", NormUnit())),
        inside(register_module("inside", torch::nn::LayerNorm(torch::nn::LayerNormOptions({6})))),
        group(register_module("group", torch::nn::GroupNorm(torch::nn::GroupNormOptions(2, 6)))),
        batch(register_module("batch", torch::nn::BatchNorm1d(6))),
        linear(register_module("linear", LinearUnit(6, 6))),
        last(register_module("last", LinearUnit(6, 4))) {}
  torch::Tensor forward(torch::Tensor x) {
    x = linear(norm(x));
    linear_output = x.scalar_type();
    x = batch(group(inside(x)));
    norm_output = x.scalar_type();
    norm_weight = inside->weight.scalar_type();
    return last(x);
  }
  NormUnit norm;
  torch::nn::LayerNorm inside;
  torch::nn::GroupNorm group;
  torch::nn::BatchNorm1d batch;
  LinearUnit linear, last;
  at::ScalarType linear_output = at::kInt, norm_output = at::kInt, norm_weight = at::kInt;
};
using Norms = Unit<NormsImpl>;

}  // namespace

TEST_CASE("floating-point arguments are cast wherever they lie and others are not") {
  ranks(2, [](Rank& rank) {
    for (const bool casts : {true, false}) {
      Look model;
      FullyShardedDataParallel fsdp(
          model, rank.comm_ptr(),
          mixed_options(
              {.param_dtype = kBf16, .output_dtype = at::kDouble, .cast_forward_inputs = casts}));
      const auto x = torch::ones({3});
      auto changeable = torch::ones({3});
      const std::vector<torch::Tensor> list{x, torch::ones({3}, torch::kLong)};
      const auto output = model->forward(x, x, changeable, list,
                                         Several{x, x.to(torch::kDouble), {x}}, {{"x", x}}, "x");
      const auto cast = casts ? kBf16 : at::kFloat;
      const std::vector<at::ScalarType> expected{
          cast, cast, at::kFloat, cast, at::kLong, cast, casts ? kBf16 : at::kDouble, cast, cast};
      check(model->seen == expected, "dtypes in forward");
      check(x.scalar_type() == at::kFloat && list[0].scalar_type() == at::kFloat,
            "the caller's tensors are not changed");
      check_equal(changeable.numel(), std::int64_t{1}, "a reference reaches the caller");
      check(output.at("sum").scalar_type() == at::kDouble, "outputs are cast");
      check(output.at("whole").scalar_type() == at::kLong, "integers are not");
      output.at("sum").sum().backward();
      for (const ShardSpan& span : fsdp.shard_spans()) {
        check_same_bits(span.leaf.grad(), torch::ones({span.numel}), "through the casts");
      }
    }
  });
}

TEST_CASE("arguments of an overloaded forward are cast") {
  ranks(1, [](Rank& rank) {
    AnyLook model;
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), mixed_options({.param_dtype = kBf16}));
    const auto x = torch::ones({3});
    auto y = torch::ones({3});
    check(model(x).scalar_type() == kBf16, "one overload");
    check(model(torch::ones({3}), y).scalar_type() == kBf16, "the other");
    check(model->scale_dtype == kBf16 && y.scalar_type() == at::kFloat, "in a copy");
  });
}

TEST_CASE("the gradient of an input comes back in its own dtype") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(),
                                    mixed_options({.param_dtype = kBf16}, shared));
      auto x = stack_input(rank.rank(), 0).requires_grad_(true);
      model(x).square().mean().backward();
      check(x.grad().scalar_type() == at::kFloat, "float32 as the input");
      check(x.grad().count_nonzero().item<std::int64_t>() > 0, "not zero");
    });
  }
}

TEST_CASE("norms are kept in float32 inside a bf16 unit and as a unit") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Norms model;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(),
                                    mixed_options({.param_dtype = kBf16}, shared));
      for (int step = 0; step < 3; ++step) {
        const auto y = model(stack_input(rank.rank(), step, 5));
        check(y.scalar_type() == kBf16, "the last layer's dtype");
        y.square().mean().backward();
      }
      check(model->norm->input == at::kFloat, "a kept unit computes in float32");
      check(model->linear_output == kBf16, "the next unit casts back");
      check(model->norm_weight == at::kFloat, "a kept parameter");
      check(model->norm_output == kBf16, "torch's norms return the dtype of their input");
      for (const auto& parameter : model->parameters()) {
        check(parameter.grad().scalar_type() == at::kFloat, "gradients are float32");
      }
    });
  }
}

TEST_CASE("kept parameters are exact in forward on both gathers") {
  const auto weight_in_forward = [](bool shared, const fsdp::KeepPolicy& keep) {
    at::Tensor seen;
    ranks(3, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(
          model, rank.comm_ptr(), mixed_options({.param_dtype = kBf16, .keep_fp32 = keep}, shared));
      model->body = [&](StackImpl& self, torch::Tensor x) {
        if (rank.rank() == 2) seen = self.head->bias.detach().clone();
        return self.layers[0](x).to(self.head->weight.scalar_type());
      };
      const torch::NoGradGuard no_grad;
      model(stack_input(rank.rank(), 0));
    });
    return seen;
  };
  const Stack plain = make_seeded_stack();
  for (const bool shared : {true, false}) {
    check_same_bits(weight_in_forward(shared, keep_modules_named("head")),
                    plain->head->bias.detach());
    check_same_bits(weight_in_forward(shared, keep_modules_of<torch::nn::Linear>()),
                    plain->head->bias.detach());
    check_same_bits(weight_in_forward(shared, keep_nothing()),
                    plain->head->bias.detach().to(kBf16));
  }
}

TEST_CASE("full state is exact and loading and editing reach the bf16 values") {
  for (const bool shared : {true, false}) {
    ranks(3, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      const StateDict first = plain_state(model);
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(),
                                    mixed_options({.param_dtype = kBf16}, shared));
      const auto output = [&] {
        const torch::NoGradGuard no_grad;
        return model(stack_input(0, 0)).to(at::kFloat);
      };
      const auto before = output();
      StateDict state = full_state_dict(fsdp);
      if (rank.rank() == 0) check_same_state(state, first, "not rounded");
      {
        const auto scope = fsdp.edit();
        const torch::NoGradGuard no_grad;
        for (auto& parameter : model->parameters()) parameter.mul_(2.0);
      }
      check(!same_bits(output(), before), "an edit is seen");
      load_full_state_dict(fsdp, state);
      check_same_bits(output(), before, "loading is seen");
    });
  }
}

TEST_CASE("writing while peers read is found with bf16 compute too") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    FullyShardedDataParallel fsdp(model, rank.comm_ptr(), mixed_options({.param_dtype = kBf16}));
    model(stack_input(rank.rank(), 0)).square().mean().backward();
    const auto optimizer = exact_sgd(model->parameters());
    {
      const torch::NoGradGuard no_grad;
      model(stack_input(rank.rank(), 1));
    }
    meet(rank, "evaluated");
    optimizer->step();
    check_says(error_of([&] { model(stack_input(rank.rank(), 2)); }), "while other ranks may read");
  });
}

TEST_CASE("an exception in a bf16 forward leaves the model usable") {
  for (const bool shared : {true, false}) {
    ranks(2, [&](Rank& rank) {
      Stack model = make_seeded_stack();
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(),
                                    mixed_options({.param_dtype = kBf16}, shared));
      const auto body = model->body;
      model->body = [](StackImpl& self, torch::Tensor x) -> torch::Tensor {
        x = self.layers[0](x);
        throw std::runtime_error("on purpose");
      };
      bool thrown = false;
      try {
        model(stack_input(rank.rank(), 0));
      } catch (const std::runtime_error&) {
        thrown = true;
      }
      check(thrown, "the exception reaches the caller");
      model->body = body;
      model(stack_input(rank.rank(), 0)).square().mean().backward();
      for (const auto& parameter : model->parameters()) {
        check(parameter.scalar_type() == at::kFloat, "back to its shard");
      }
    });
  }
}

TEST_CASE("bf16 halves what a private gather fills and moves") {
  ranks(2, [](Rank& rank) {
    std::int64_t full[2], moved[2], resident[2];
    for (const bool low : {false, true}) {
      torch::nn::Sequential model{LinearUnit(256, 256), LinearUnit(256, 256)};
      fsdp::Options options{.shared_gather = false};
      if (low) options.mixed_precision.param_dtype = kBf16;
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(), options);
      const auto before = rank.comm().stats()[OpKind::kAllGather].payload_bytes;
      fsdp.unshard("0");
      resident[low] = fsdp.units()[0].resident_bytes;
      moved[low] = rank.comm().stats()[OpKind::kAllGather].payload_bytes - before;
      full[low] = fsdp.units()[0].full_bytes;
      fsdp.reshard("0");
      check_equal(fsdp.units()[0].resident_bytes, std::int64_t{0}, "when given up");
    }
    check_equal(full[1] * 2, full[0], "full bytes");
    check_equal(moved[1] * 2, moved[0], "bytes moved");
    check(resident[1] * 2 <= resident[0] + 2 * 4096, "resident bytes");
  });
}

TEST_CASE("what bf16 parameters cost beside the float32 ones is counted") {
  ranks(2, [](Rank& rank) {
    for (const bool shared : {true, false}) {
      torch::nn::Sequential model{LinearUnit(256, 256)};
      FullyShardedDataParallel fsdp(model, rank.comm_ptr(),
                                    mixed_options({.param_dtype = kBf16}, shared));
      const auto unit = fsdp.units()[0];
      check_equal(fsdp.cast_parameter_bytes() * 2, unit.shard_bytes, "half of this rank's slice");
      check_says(fsdp.describe(), "BFloat16");
      FullyShardedDataParallel<torch::nn::Sequential> plain(
          torch::nn::Sequential{LinearUnit(256, 256)}, rank.comm_ptr(), {.shared_gather = shared});
      check_equal(plain.cast_parameter_bytes(), std::int64_t{0}, "without mixed precision");
    }
  });
}

TEST_CASE("dtypes without sense are refused by name") {
  ranks(2, [](Rank& rank) {
    const auto refusal = [&](const fsdp::MixedPrecision& mixed, at::ScalarType model_dtype) {
      return error_of([&] {
        Stack model = make_seeded_stack();
        model->to(model_dtype);
        FullyShardedDataParallel fsdp(model, rank.comm_ptr(), mixed_options(mixed));
      });
    };
    check_says(refusal({.param_dtype = at::kInt}, at::kFloat), "param_dtype is Int");
    check_says(refusal({.param_dtype = at::kDouble}, at::kFloat), "param_dtype is Double");
    check_says(refusal({.param_dtype = kBf16}, at::kDouble), "mixed precision starts from Float");
    check_says(refusal({.reduce_dtype = at::kLong}, at::kFloat), "reduce_dtype is Long");
    check_says(refusal({.output_dtype = at::kBool}, at::kFloat), "output_dtype is Bool");
    check_says(refusal({.param_dtype = kBf16}, kBf16), "is BFloat16; parameters must be float32");
    check_says(
        refusal({.param_dtype = kBf16, .keep_fp32 = keep_modules_named("nothing.*")}, at::kFloat),
        "keep_modules_named(\"nothing.*\") matches no module");
    check_says(error_of([] { keep_modules_named(""); }), "pattern is empty");
  });
}

TEST_CASE("ranks with other precisions are told on all ranks") {
  ranks(2, [](Rank& rank) {
    Stack model = make_seeded_stack();
    fsdp::MixedPrecision mixed;
    if (rank.rank() == 1) mixed.param_dtype = kBf16;
    const auto text = error_of(
        [&] { FullyShardedDataParallel fsdp(model, rank.comm_ptr(), mixed_options(mixed)); });
    check_says(text, "rank 1 has mixed_precision of unit (root): computes in BFloat16");
  });
}

}  // namespace convoy
