// Clips gradients by their total norm.
#include "convoy/optim/clip_grad_norm.h"

#include "convoy/base/check.h"
#include "optim/gradient_norm.h"

#include <ATen/core/grad_mode.h>

#include <cmath>

namespace convoy::optim {

double clip_grad_norm_(std::span<const ShardSpan> spans, Communicator* comm, double max_norm,
                       double p, bool error_if_nonfinite) {
  CONVOY_REQUIRE(p > 0, kInvalidArgument, "clip_grad_norm_: p is ", p, "; it must be above 0");
  CONVOY_REQUIRE(max_norm >= 0, kInvalidArgument, "clip_grad_norm_: max_norm is ", max_norm,
                 "; it must not be negative");
  const double norm = gradient_norm(spans, comm, p, "clip_grad_norm_",
                                    concat("(max_norm=", max_norm, ", p=", p, ")"));
  CONVOY_REQUIRE(!error_if_nonfinite || std::isfinite(norm), kInvalidArgument,
                 "clip_grad_norm_: the gradients' norm of order ", p, " is ", norm,
                 ", so they cannot be clipped; nothing was scaled");
  const double coefficient = max_norm / (norm + 1e-6);
  if (coefficient >= 1) return norm;  // Not so for nan.

  const at::NoGradGuard no_grad;
  for (const auto& span : spans) {
    if (!span.leaf.defined() || !span.leaf.grad().defined()) continue;
    // One multiplication an element, by the coefficient rounded to the dtype computed in.
    span.leaf.grad().detach().mul_(coefficient);
  }
  return norm;
}

double clip_grad_norm_(const std::vector<at::Tensor>& parameters, double max_norm, double p,
                       bool error_if_nonfinite) {
  const auto spans = spans_of_process(parameters, "clip_grad_norm_");
  return clip_grad_norm_(spans, nullptr, max_norm, p, error_if_nonfinite);
}

}  // namespace convoy::optim
