// Saving and loading whole models and their optimizers, sharded or not: checkpoint's functions by
// spans, for models.
#pragma once

#include "convoy/checkpoint/model_state.h"
#include "convoy/checkpoint/optimizer_state.h"
#include "convoy/optim/model_concepts.h"

#include <torch/nn/module.h>

#include <filesystem>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

namespace convoy {
namespace detail {

template <AnyModel Model>
const torch::nn::Module& module_of(const Model& model) {
  if constexpr (WrappedModel<Model>) {
    return *model.module();
  } else if constexpr (PlainModel<Model>) {
    return model;
  } else {
    return *model;
  }
}

template <AnyModel Model>
Communicator* communicator_of(const Model& model) {
  if constexpr (WrappedModel<Model>) {
    return address_of(model.communicator());
  } else {
    return nullptr;
  }
}

/// Every parameter once, by the first of its names. What a wrapper leaves alone (FSDP: ignored
/// parameters) is whole on every rank, and counts as the same on all.
template <AnyModel Model>
std::vector<ShardSpan> parameter_spans(const Model& model) {
  std::vector<ShardSpan> spans;
  if constexpr (WrappedModel<Model>) spans = model.shard_spans();
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const ShardSpan& span : spans) seen.insert(span.leaf.unsafeGetTensorImpl());
  for (const auto& item : module_of(model).named_parameters()) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
      continue;
    spans.push_back(whole_span(item.key(), item.value()));
  }
  return spans;
}

/// Parameters and buffers, each tensor once; its further names go to `aliases`.
template <AnyModel Model>
std::vector<ShardSpan> state_spans(const Model& model, saving::Metadata& aliases) {
  const torch::nn::Module& module = module_of(model);
  std::vector<ShardSpan> spans;
  std::unordered_map<const c10::TensorImpl*, std::string> first_names;
  const auto add = [&](const ShardSpan& span) {
    if (first_names.emplace(span.leaf.unsafeGetTensorImpl(), span.name).second) {
      spans.push_back(span);
    }
  };
  for (const ShardSpan& span : parameter_spans(model)) add(span);
  for (const auto& item : module.named_buffers()) {
    if (item.value().defined()) add(whole_span(item.key(), item.value()));
  }
  const auto note = [&](const auto& items) {
    for (const auto& item : items) {
      if (!item.value().defined()) continue;
      const auto& first = first_names.at(item.value().unsafeGetTensorImpl());
      if (first != item.key()) aliases.emplace(item.key(), first);
    }
  };
  note(module.named_parameters());
  note(module.named_buffers());
  return spans;
}

}  // namespace detail

/// Writes all parameters and buffers of a model to a safetensors file under their original names:
/// whole tensors, whatever the model is (a module, its holder, or a DistributedDataParallel or
/// FullyShardedDataParallel around it). Rank 0 writes, as the pieces come in; of buffers, and of
/// parameters that FSDP ignores, its own values. A tensor with several
/// names is stored once, as by save_safetensors. Collective. See saving::save_model.
template <detail::AnyModel Model>
void save_model(const std::filesystem::path& path, const Model& model,
                saving::Metadata metadata = {}) {
  const auto spans = detail::state_spans(model, metadata);
  saving::save_model(path, spans, detail::communicator_of(model), metadata);
}

/// Sets all parameters and buffers from such a file, of any world and strategy. No rank holds the
/// whole model. Collective. See saving::load_model.
template <detail::AnyModel Model>
void load_model(const std::filesystem::path& path, Model& model) {
  saving::Metadata aliases;
  const auto spans = detail::state_spans(model, aliases);
  if constexpr (requires { model.edit(); }) {
    const auto edit = model.edit();
    saving::load_model(path, spans, detail::communicator_of(model));
  } else {
    saving::load_model(path, spans, detail::communicator_of(model));
  }
}

/// The state of the model's optimizer by the names of parameters, whole, on rank 0; empty on other
/// ranks. Collective. See saving::full_optimizer_state_dict.
template <detail::AnyModel Model>
saving::StateDict full_optimizer_state_dict(const Model& model,
                                            const torch::optim::Optimizer& optimizer) {
  return saving::full_optimizer_state_dict(detail::parameter_spans(model), optimizer,
                                           detail::communicator_of(model));
}

/// Sets the optimizer's state from rank 0's. Collective.
template <detail::AnyModel Model>
void load_full_optimizer_state_dict(const Model& model, torch::optim::Optimizer& optimizer,
                                    const saving::StateDict& state) {
  saving::load_full_optimizer_state_dict(detail::parameter_spans(model), optimizer,
                                         detail::communicator_of(model), state);
}

/// The same to and from a safetensors file. Collective.
template <detail::AnyModel Model>
void save_optimizer(const std::filesystem::path& path, const Model& model,
                    const torch::optim::Optimizer& optimizer,
                    const saving::Metadata& metadata = {}) {
  saving::save_optimizer(path, detail::parameter_spans(model), optimizer,
                         detail::communicator_of(model), metadata);
}
template <detail::AnyModel Model>
void load_optimizer(const std::filesystem::path& path, const Model& model,
                    torch::optim::Optimizer& optimizer) {
  saving::load_optimizer(path, detail::parameter_spans(model), optimizer,
                         detail::communicator_of(model));
}

}  // namespace convoy
