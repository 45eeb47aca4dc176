// Scales losses so that gradients in half precision do not vanish, in agreement over all ranks.
#pragma once

#include "convoy/comm/communicator.h"
#include "convoy/flat/shard_span.h"
#include "convoy/optim/model_concepts.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace convoy::optim {

struct GradScalerOptions {
  double init_scale = 65536;
  double growth_factor = 2;     ///< Of the scale, after growth_interval clean steps.
  double backoff_factor = 0.5;  ///< Of the scale, after a step with inf or nan.
  std::int64_t growth_interval = 2000;
  bool enabled = true;  ///< False: losses and gradients are left alone, and every step is made.
};

/// What a checkpoint keeps of a GradScaler. The same on every rank, so one of them may write it.
struct GradScalerState {
  double scale = 0;
  std::int64_t growth_tracker = 0;  ///< Clean steps since the scale changed.
};

/// torch.amp.GradScaler for every strategy. A step whose gradients have an inf or nan on any rank
/// is skipped on all ranks, and the scale goes down; after growth_interval clean steps it goes up.
///
///     convoy::GradScaler scaler;
///     scaler.scale(loss).backward();
///     scaler.unscale_(fsdp);  // Here the ranks agree whether there was an overflow.
///     convoy::clip_grad_norm_(fsdp, 1.0);
///     scaler.step(optimizer);
///     scaler.update();
///
/// Unlike PyTorch's, step() does not unscale by itself: an optimizer does not know the ranks.
/// With several models and optimizers: unscale_ each, step each, update once; an optimizer is
/// skipped if one of its own models had an overflow. Parameters that FSDP ignores belong to no
/// model: to train them in half precision, make their gradients alike on all ranks first, then
/// unscale_ them beside the model.
///
/// Thread rule: one thread at a time.
class GradScaler {
 public:
  /// Error: kInvalidArgument (init_scale not between 2^-126 and 2^126, where float32 holds both it
  /// and its inverse as normal numbers; growth_factor not above 1, backoff_factor not between 0 and
  /// 1, growth_interval below 1).
  explicit GradScaler(GradScalerOptions options = {});

  /// `loss` times the scale. Error: kInvalidArgument if it is undefined or not floating point.
  at::Tensor scale(const at::Tensor& loss) const;

  /// Divides the gradients by the scale, in place, and finds out whether any rank has one that is
  /// inf or nan. Once after the last backward of a step, before clipping. Collective for a wrapped
  /// model: every rank calls it, also one whose slices are empty. A model under ZeRO is unscaled by
  /// its DistributedDataParallel wrapper.
  ///
  /// The multiplication by 1/scale is done in float32 (in float64 for float64), so it is exact for
  /// scales that are powers of two, unless the result is subnormal. Gradients: as clip_grad_norm_
  /// takes them, but not half, where the unscaled value would vanish again.
  ///
  /// Errors, after which nothing has changed: kMisuse (a second time before update());
  /// kInvalidArgument (a half parameter, a sparse or ill-shaped gradient; the other ranks then get
  /// kMismatch); kMismatch on all ranks when their scales or gradients differ; those of the
  /// communicator.
  template <detail::AnyModel Model>
  void unscale_(const Model& model) {
    if constexpr (detail::WrappedModel<Model>) {
      const auto& spans = model.shard_spans();
      unscale_(std::span<const ShardSpan>(spans), detail::address_of(model.communicator()));
    } else if constexpr (detail::PlainModel<Model>) {
      unscale_(model.parameters());
    } else {
      unscale_(model->parameters());
    }
  }
  void unscale_(std::span<const ShardSpan> spans, Communicator* comm);
  /// The parameters of one process.
  void unscale_(const std::vector<at::Tensor>& parameters);

  /// optimizer.step(), unless the gradients had an overflow on any rank: true if it was made. A
  /// torch::optim optimizer, one of Convoy's, or a ZeroRedundancyOptimizer (collective, as its
  /// step). Error: kMisuse (a second step of it before update(), or gradients that unscale_ has not
  /// seen).
  template <class Optimizer>
  bool step(Optimizer& optimizer) {
    if (!begin_step(&optimizer, parameters_of(optimizer))) return false;
    optimizer.step();
    return true;
  }

  /// Ends a step: sets the scale for the next one, or sets it to `new_scale`. The scale stays
  /// within the limits of init_scale, whatever the factors and the number of overflows. Errors:
  /// kMisuse if nothing was unscaled since the last update(); kInvalidArgument as for init_scale.
  void update(std::optional<double> new_scale = {});

  /// 1 if not enabled.
  double get_scale() const;
  bool is_enabled() const noexcept { return options_.enabled; }
  const GradScalerOptions& options() const noexcept { return options_; }

  /// Between update() and the next unscale_; kMisuse elsewhere, since the step is half done.
  GradScalerState state() const;
  /// Errors: kMisuse in the middle of a step; kInvalidArgument (a scale as above, or a tracker
  /// below 0).
  void load_state(const GradScalerState& state);

 private:
  /// The leaves of one unscale_. They are held so that another tensor cannot take their place.
  struct Unscaled {
    std::vector<at::Tensor> leaves;
    bool overflow;
  };

  template <class Optimizer>
  static std::vector<at::Tensor> parameters_of(Optimizer& optimizer) {
    if constexpr (requires { optimizer.stepped_parameters(); }) {
      return optimizer.stepped_parameters();
    } else {
      std::vector<at::Tensor> parameters;
      for (const auto& group : optimizer.param_groups()) {
        parameters.insert(parameters.end(), group.params().begin(), group.params().end());
      }
      return parameters;
    }
  }

  const Unscaled* find(const at::Tensor& leaf) const;
  bool begin_step(const void* optimizer, const std::vector<at::Tensor>& parameters);
  void require_between_steps(const char* function) const;

  GradScalerOptions options_;
  float scale_;
  std::int64_t growth_tracker_ = 0;
  std::vector<Unscaled> unscaled_;    ///< Since the last update().
  std::vector<const void*> stepped_;  ///< Optimizers, since the last update().
};

}  // namespace convoy::optim

namespace convoy {
using optim::GradScaler;
using optim::GradScalerOptions;
using optim::GradScalerState;
}  // namespace convoy
