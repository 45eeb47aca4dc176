// The elementwise kernels of the optimizers, on plain arrays.
//
// Note [Same bits for every cut]
// A sharded parameter is cut where the world size says, so an element may be computed in a vector
// register on one rank and in a loop's tail on another. Every operation here is one IEEE operation
// a lane (+, -, *, /, sqrt), in an order written in the source; the file is compiled without
// contraction into fused multiply-adds and without reassociation. So vector width, tail and
// instruction set give the same bits, and each element's result depends on its own values alone.
#pragma once

#include <cstdint>

namespace convoy::optim {

/// The arrays of one parameter; none overlap.
template <typename T>
struct AdamWArrays {
  T* param;
  const T* grad;
  T* exp_avg;
  T* exp_avg_sq;
  T* max_exp_avg_sq;  ///< Null without amsgrad.
};

/// Per-step scalars, computed in double on the host and rounded once. The bias corrections c1 and
/// c2 are moved out of the element's formula: step/c1 * m / (sqrt(v/c2) + eps) is (step *
/// sqrt(c2)/c1) * m / (sqrt(v) + eps * sqrt(c2)), one division an element instead of two.
template <typename T>
struct AdamWScalars {
  T keep;  ///< 1 - lr * weight_decay
  T one_minus_beta1;
  T beta2;
  T one_minus_beta2;
  T step_size;  ///< lr * sqrt(c2) / c1
  T eps;        ///< eps * sqrt(c2)
};

template <typename T>
struct SGDArrays {
  T* param;
  const T* grad;
  T* momentum_buffer;  ///< Null without momentum.
};

template <typename T>
struct SGDScalars {
  T weight_decay;
  T momentum;
  T one_minus_dampening;
  T lr;
  bool first;  ///< The momentum buffer takes the gradient as it is.
  bool nesterov;
};

/// Updates elements [begin, end).
template <typename T>
void update_adamw(const AdamWArrays<T>& arrays, const AdamWScalars<T>& scalars, std::int64_t begin,
                  std::int64_t end);
template <typename T>
void update_sgd(const SGDArrays<T>& arrays, const SGDScalars<T>& scalars, std::int64_t begin,
                std::int64_t end);

}  // namespace convoy::optim
