// The table of models.
#include "programs/train_gpt/model_config.h"

#include "convoy/base/check.h"
#include "convoy/base/suggest.h"

#include <array>

namespace convoy::train_gpt {
namespace {

constexpr std::array<NamedModel, 4> kModels{{
    {"tiny", {.layers = 4, .dim = 128, .heads = 4, .seq = 64, .vocab = 256}, 8, 1e-3},
    {"small", {.layers = 6, .dim = 384, .heads = 6, .seq = 256, .vocab = 256}, 4, 1e-3},
    {"base", {.layers = 8, .dim = 768, .heads = 12, .seq = 128, .vocab = 256}, 1, 6e-4},
    {"gpt2-124m",
     {.layers = 12, .dim = 768, .heads = 12, .seq = 1024, .vocab = 50304, .tie_embeddings = true},
     1,
     6e-4},
}};

constexpr double kMostParameters = 1e13;

void require_positive(std::int64_t value, std::string_view flag) {
  CONVOY_REQUIRE(value >= 1, kInvalidArgument, flag, " must be at least 1, got ", value);
}

}  // namespace

std::string_view to_string(ComputeDtype dtype) noexcept {
  return dtype == ComputeDtype::kBFloat16 ? "bf16" : "fp32";
}

ComputeDtype parse_dtype(std::string_view name) {
  if (name == "fp32" || name == "float32") return ComputeDtype::kFloat32;
  if (name == "bf16" || name == "bfloat16") return ComputeDtype::kBFloat16;
  const std::vector<std::string> names{"fp32", "float32", "bf16", "bfloat16"};
  throw Error(ErrorKind::kInvalidArgument,
              concat("--dtype '", name, "' is not available", did_you_mean(name, names),
                     "; it takes fp32 or bf16"));
}

std::span<const NamedModel> named_models() { return kModels; }

const NamedModel& named_model(std::string_view name) {
  std::vector<std::string> names;
  for (const NamedModel& model : kModels) {
    if (model.name == name) return model;
    names.emplace_back(model.name);
  }
  throw Error(ErrorKind::kInvalidArgument,
              concat("there is no model '", name, "'", did_you_mean(name, names),
                     " (tiny, small, base, gpt2-124m)"));
}

void check_model(const ModelConfig& config) {
  require_positive(config.layers, "--layers");
  require_positive(config.dim, "--dim");
  require_positive(config.heads, "--heads");
  require_positive(config.seq, "--seq");
  CONVOY_REQUIRE(config.dim % config.heads == 0, kInvalidArgument, "--dim ", config.dim,
                 " does not divide into ", config.heads, " heads (--heads)");
  CONVOY_REQUIRE(config.vocab >= 256, kInvalidArgument, "--vocab ", config.vocab,
                 " cannot hold the 256 byte values; it must be at least 256");
  // Estimated in floating point, where no size overflows.
  const auto dim = static_cast<double>(config.dim);
  const double weights =
      static_cast<double>(config.layers) * 12 * dim * dim +
      (2 * static_cast<double>(config.vocab) + static_cast<double>(config.seq)) * dim;
  CONVOY_REQUIRE(weights < kMostParameters, kInvalidArgument, "--layers ", config.layers,
                 ", --dim ", config.dim, ", --seq ", config.seq, " and --vocab ", config.vocab,
                 " make a model of about ", weights, " parameters, which no machine holds");
}

std::int64_t parameter_count(const ModelConfig& config) {
  const std::int64_t dim = config.dim;
  const std::int64_t norms = 2 * 2 * dim;
  const std::int64_t attention = (3 * dim * dim + 3 * dim) + (dim * dim + dim);
  const std::int64_t feed_forward = (4 * dim * dim + 4 * dim) + (4 * dim * dim + dim);
  const std::int64_t head = config.tie_embeddings ? 0 : config.vocab * dim;
  return config.vocab * dim + config.seq * dim +
         config.layers * (norms + attention + feed_forward) + 2 * dim + head;
}

}  // namespace convoy::train_gpt
