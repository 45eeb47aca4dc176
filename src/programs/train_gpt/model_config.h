// The sizes of a GPT, the named models, and arithmetic on them. Pure: no tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace convoy::train_gpt {

struct ModelConfig {
  std::int64_t layers = 0;
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t seq = 0;    ///< Tokens of context.
  std::int64_t vocab = 0;  ///< Bytes use the first 256 ids.
  bool tie_embeddings = false;
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
