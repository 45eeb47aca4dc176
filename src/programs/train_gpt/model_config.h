// The sizes of a GPT, the named models, and arithmetic on them. Pure: no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::train_gpt {

/// In which dtype the network computes; its parameters are float32 in any case.
enum class ComputeDtype { kFloat32, kBFloat16 };

/// "fp32", "bf16".
std::string_view to_string(ComputeDtype dtype) noexcept;
/// Takes the long names too: float32, bfloat16. Error: kInvalidArgument with the nearest name.
ComputeDtype parse_dtype(std::string_view name);

struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t seq = 0;    ///< Tokens of context.
  std::int64_t vocab = 0;  ///< Bytes use the first 256 ids.
  bool tie_embeddings = false;
  ComputeDtype dtype = ComputeDtype::kFloat32;
};

/// A model with a name, and the training values that suit its size.
struct NamedModel {
  std::string_view name;
  ModelConfig config;
  std::int64_t micro_batch;  ///< Windows of one rank in one forward.
  double lr;
};

/// tiny, small, base, gpt2-124m.
std::span<const NamedModel> named_models();
/// Error: kInvalidArgument with the nearest name.
const NamedModel& named_model(std::string_view name);

/// Error: kInvalidArgument naming the flag that cannot be.
void check_model(const ModelConfig& config);

/// Parameters of the network, tied ones once.
std::int64_t parameter_count(const ModelConfig& config);

}  // namespace convoy::train_gpt
