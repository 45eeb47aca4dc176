// One rank's copy of a module, kept equal to the other ranks' copies.
#include "convoy/ddp/replica.h"

#include "convoy/base/check.h"
#include "ddp/broadcast.h"
#include "ddp/model_check.h"
#include "ddp/parameter.h"
#include "ddp/reducer.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/embedding.h>

#include <algorithm>
#include <cmath>
#include <unordered_set>
#include <utility>

namespace convoy::ddp {
namespace {

std::string dtype_name(at::ScalarType dtype) {
  return std::string(c10::getDtypeNames(dtype).first);
}

/// Each tensor once: a tied one under the first of its names.
std::vector<NamedTensor> unique_tensors(const torch::OrderedDict<std::string, at::Tensor>& named) {
  std::vector<NamedTensor> out;
  std::unordered_set<const c10::TensorImpl*> seen;
  for (const auto& item : named) {
    if (!item.value().defined() || !seen.insert(item.value().unsafeGetTensorImpl()).second)
      continue;
    out.push_back({item.key(), item.value()});
  }
  return out;
}

/// Parameters whose layer delivers sparse gradients.
std::unordered_set<const c10::TensorImpl*> sparse_parameters(const torch::nn::Module& module) {
  std::unordered_set<const c10::TensorImpl*> out;
  for (const auto& child : module.modules()) {
    if (const auto* layer = child->as<torch::nn::EmbeddingImpl>();
        layer && layer->options.sparse()) {
      out.insert(layer->weight.unsafeGetTensorImpl());
    }
    if (const auto* layer = child->as<torch::nn::EmbeddingBagImpl>();
        layer && layer->options.sparse()) {
      out.insert(layer->weight.unsafeGetTensorImpl());
    }
  }
  return out;
}

std::string describe(const at::Tensor& tensor) {
  std::string text = concat(tensor.sizes(), " ", dtype_name(tensor.scalar_type()));
  if (tensor.layout() != at::kStrided) return concat(text, " ", tensor.layout());
  if (!tensor.is_contiguous()) text += concat(" with strides ", tensor.strides());
  if (!tensor.is_cpu()) text += concat(" on ", tensor.device());
  return text;
}

std::string describe(const std::optional<double>& value) {
  return value ? concat(*value) : std::string("unset");
}

std::vector<ModelEntry> describe_model(const std::vector<NamedTensor>& parameters,
                                       const std::vector<NamedTensor>& buffers,
                                       const DistributedDataParallelOptions& options) {
  std::vector<ModelEntry> entries = {
      {"option", "bucket_cap_mb", describe(options.bucket_cap_mb)},
      {"option", "first_bucket_cap_mb", describe(options.first_bucket_cap_mb)},
      {"option", "find_unused_parameters", options.find_unused_parameters ? "true" : "false"},
      {"option", "broadcast_buffers", options.broadcast_buffers ? "true" : "false"},
  };
  for (const auto& [name, tensor] : parameters) {
    entries.push_back(
        {"parameter", name, concat(describe(tensor), tensor.requires_grad() ? "" : " frozen")});
  }
  for (const auto& [name, tensor] : buffers) entries.push_back({"buffer", name, describe(tensor)});
  return entries;
}

void require_limit(const char* name, const std::optional<double>& value) {
  CONVOY_REQUIRE(!value || (*value > 0 && *value <= 1e9), kInvalidArgument,
                 "DistributedDataParallel: ", name, " must be above 0 and at most 1e9, and is ",
                 describe(value));
}

/// What cannot be averaged or copied. All ranks see the same, for their models have been compared.
void require_supported(const torch::nn::Module& module, const std::vector<NamedTensor>& parameters,
                       const std::vector<NamedTensor>& buffers,
                       const DistributedDataParallelOptions& options) {
  require_limit("bucket_cap_mb", options.bucket_cap_mb);
  require_limit("first_bucket_cap_mb", options.first_bucket_cap_mb);
  const auto sparse = sparse_parameters(module);
  for (const auto* tensors : {&parameters, &buffers}) {
    for (const auto& [name, tensor] : *tensors) {
      CONVOY_REQUIRE(tensor.is_cpu() && tensor.layout() == at::kStrided, kInvalidArgument,
                     "DistributedDataParallel: ", name, " is not a dense tensor on the CPU");
      CONVOY_REQUIRE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, kInvalidArgument,
                     "DistributedDataParallel: ", name,
                     " is expanded (its elements share memory); make it contiguous first");
    }
  }
  bool any_trainable = false;
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.requires_grad()) continue;
    any_trainable = true;
    const at::ScalarType dtype = tensor.scalar_type();
    CONVOY_REQUIRE(
        dtype == at::kFloat || dtype == at::kDouble || dtype == at::kBFloat16 || dtype == at::kHalf,
        kInvalidArgument, "DistributedDataParallel: parameter ", name, " is ", dtype_name(dtype),
        "; gradients can be averaged in float64, float32, bfloat16 and float16");
    CONVOY_REQUIRE(!sparse.contains(tensor.unsafeGetTensorImpl()), kInvalidArgument,
                   "DistributedDataParallel: parameter ", name,
                   " belongs to an embedding with sparse gradients; build it with sparse(false)");
  }
  CONVOY_REQUIRE(any_trainable, kInvalidArgument,
                 "DistributedDataParallel: the module has no parameter that requires a gradient; "
                 "call it without a wrapper");
}

std::vector<at::Tensor> tensors_of(const std::vector<NamedTensor>& named) {
  std::vector<at::Tensor> out;
  for (const auto& [name, tensor] : named) out.push_back(tensor);
  return out;
}

}  // namespace

Replica::Replica(std::shared_ptr<torch::nn::Module> module, CommunicatorPtr comm,
                 const DistributedDataParallelOptions& options)
    : module_(std::move(module)),
      comm_(std::move(comm)),
      broadcast_buffers_(options.broadcast_buffers) {
  CONVOY_REQUIRE(module_ != nullptr && comm_ != nullptr, kInvalidArgument,
                 "DistributedDataParallel: module or communicator is null");
  parameters_ = unique_tensors(module_->named_parameters());
  buffers_ = unique_tensors(module_->named_buffers());
  require_same_model(*comm_, describe_model(parameters_, buffers_, options));
  require_supported(*module_, parameters_, buffers_, options);

  std::vector<Parameter> trainable;
  for (const NamedTensor& parameter : parameters_) {
    if (parameter.tensor.requires_grad()) {
      trainable.push_back({parameter.name, parameter.tensor});
    } else {
      frozen_.push_back(parameter);
    }
  }
  broadcast_from_rank_0(*comm_, tensors_of(parameters_), "initial parameters",
                        VersionCounters::kBump);
  if (broadcast_buffers_) {
    broadcast_from_rank_0(*comm_, tensors_of(buffers_), "initial buffers", VersionCounters::kBump);
  }
  reducer_ = std::make_shared<Reducer>(std::move(trainable), comm_, options);
}

Replica::~Replica() = default;

void Replica::before_forward() {
  reducer_->require_usable();
  if (at::GradMode::is_enabled()) {
    reducer_->require_unchanged();
    require_frozen_unchanged();
  }
  if (module_->is_training() && broadcast_buffers_ &&
      buffers_follow_ != reducer_->synchronised_backwards()) {
    // A graph that still waits for its backward may have saved a buffer (batch norm saves its
    // running statistics and does not read them). A new version would make that backward refuse to
    // run.
    broadcast_from_rank_0(*comm_, tensors_of(buffers_), "buffers", VersionCounters::kKeep);
    buffers_follow_ = reducer_->synchronised_backwards();
  }
}

void Replica::after_forward() {
  const bool trains = at::GradMode::is_enabled() && module_->is_training();
  if (trains && !reducer_->is_paused()) reducer_->count_forward();
}

void Replica::watch_output(const at::Tensor& output) { reducer_->watch(output); }

void Replica::pause() { reducer_->pause(); }

void Replica::resume() noexcept { reducer_->resume(); }

std::vector<ShardSpan> Replica::shard_spans() const {
  std::vector<ShardSpan> spans;
  for (const auto& [name, tensor] : parameters_) {
    spans.push_back(whole_span(name, tensor));
  }
  return spans;
}

std::int64_t Replica::bucket_bytes() const { return reducer_->bucket_bytes(); }

DistributedDataParallelStats Replica::stats() const { return reducer_->stats(); }

void Replica::reset_stats() { reducer_->reset_stats(); }

void Replica::require_frozen_unchanged() const {
  for (const auto& [name, tensor] : frozen_) {
    CONVOY_REQUIRE(!tensor.requires_grad(), kMisuse, "DistributedDataParallel: parameter ", name,
                   " was frozen when the module was wrapped and requires a gradient now; wrap the "
                   "module again after changing requires_grad");
  }
}

}  // namespace convoy::ddp
