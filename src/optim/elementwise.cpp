// The elementwise kernels: see Note [Same bits for every cut]. This file has its own compile flags.
#include "optim/elementwise.h"

#include "optim/vector_clones.h"

#include <cmath>

namespace convoy::optim {
namespace {

template <bool kAmsgrad, typename T>
CONVOY_INLINE_BODY void adamw_body(const AdamWArrays<T>& arrays, const AdamWScalars<T>& scalars,
                                   std::int64_t begin, std::int64_t end) {
  T* __restrict__ param = arrays.param;
  const T* __restrict__ grad = arrays.grad;
  T* __restrict__ exp_avg = arrays.exp_avg;
  T* __restrict__ exp_avg_sq = arrays.exp_avg_sq;
  T* __restrict__ max_exp_avg_sq = arrays.max_exp_avg_sq;
  const AdamWScalars<T> s = scalars;
  for (std::int64_t i = begin; i < end; ++i) {
    const T g = grad[i];
    const T m = exp_avg[i] + (g - exp_avg[i]) * s.one_minus_beta1;
    const T v = exp_avg_sq[i] * s.beta2 + (s.one_minus_beta2 * g) * g;
    exp_avg[i] = m;
    exp_avg_sq[i] = v;
    T largest = v;
    if constexpr (kAmsgrad) {
      const T before = max_exp_avg_sq[i];
      // Keeps a nan of either side, as at::maximum does.
      largest = (before >= v) | (before != before) ? before : v;
      max_exp_avg_sq[i] = largest;
    }
    param[i] = param[i] * s.keep - (s.step_size * m) / (std::sqrt(largest) + s.eps);
  }
}

template <bool kMomentum, bool kFirst, bool kNesterov, typename T>
CONVOY_INLINE_BODY void sgd_body(const SGDArrays<T>& arrays, const SGDScalars<T>& scalars,
                                 std::int64_t begin, std::int64_t end) {
  T* __restrict__ param = arrays.param;
  const T* __restrict__ grad = arrays.grad;
  T* __restrict__ buffer = arrays.momentum_buffer;
  const SGDScalars<T> s = scalars;
  for (std::int64_t i = begin; i < end; ++i) {
    // Without decay the parameter is not read into the direction: 0 * inf would be nan.
    T direction = s.weight_decay != T(0) ? grad[i] + s.weight_decay * param[i] : grad[i];
    if constexpr (kMomentum) {
      const T b = kFirst ? direction : s.momentum * buffer[i] + s.one_minus_dampening * direction;
      buffer[i] = b;
      direction = kNesterov ? direction + s.momentum * b : b;
    }
    param[i] = param[i] - s.lr * direction;
  }
}

template <typename T>
CONVOY_INLINE_BODY void sgd_any(const SGDArrays<T>& arrays, const SGDScalars<T>& s,
                                std::int64_t begin, std::int64_t end) {
  if (arrays.momentum_buffer == nullptr) {
    sgd_body<false, false, false>(arrays, s, begin, end);
  } else if (s.nesterov) {
    s.first ? sgd_body<true, true, true>(arrays, s, begin, end)
            : sgd_body<true, false, true>(arrays, s, begin, end);
  } else {
    s.first ? sgd_body<true, true, false>(arrays, s, begin, end)
            : sgd_body<true, false, false>(arrays, s, begin, end);
  }
}

// Templates cannot be cloned, so each element type has a plain function.
CONVOY_VECTOR_CLONES
void adamw_float(const AdamWArrays<float>& arrays, const AdamWScalars<float>& scalars,
                 std::int64_t begin, std::int64_t end) {
  adamw_body<false>(arrays, scalars, begin, end);
}
CONVOY_VECTOR_CLONES
void amsgrad_float(const AdamWArrays<float>& arrays, const AdamWScalars<float>& scalars,
                   std::int64_t begin, std::int64_t end) {
  adamw_body<true>(arrays, scalars, begin, end);
}
CONVOY_VECTOR_CLONES
void adamw_double(const AdamWArrays<double>& arrays, const AdamWScalars<double>& scalars,
                  std::int64_t begin, std::int64_t end) {
  adamw_body<false>(arrays, scalars, begin, end);
}
CONVOY_VECTOR_CLONES
void amsgrad_double(const AdamWArrays<double>& arrays, const AdamWScalars<double>& scalars,
                    std::int64_t begin, std::int64_t end) {
  adamw_body<true>(arrays, scalars, begin, end);
}
CONVOY_VECTOR_CLONES
void sgd_float(const SGDArrays<float>& arrays, const SGDScalars<float>& scalars, std::int64_t begin,
               std::int64_t end) {
  sgd_any(arrays, scalars, begin, end);
}
CONVOY_VECTOR_CLONES
void sgd_double(const SGDArrays<double>& arrays, const SGDScalars<double>& scalars,
                std::int64_t begin, std::int64_t end) {
  sgd_any(arrays, scalars, begin, end);
}

}  // namespace

template <>
void update_adamw(const AdamWArrays<float>& arrays, const AdamWScalars<float>& scalars,
                  std::int64_t begin, std::int64_t end) {
  arrays.max_exp_avg_sq == nullptr ? adamw_float(arrays, scalars, begin, end)
                                   : amsgrad_float(arrays, scalars, begin, end);
}

template <>
void update_adamw(const AdamWArrays<double>& arrays, const AdamWScalars<double>& scalars,
                  std::int64_t begin, std::int64_t end) {
  arrays.max_exp_avg_sq == nullptr ? adamw_double(arrays, scalars, begin, end)
                                   : amsgrad_double(arrays, scalars, begin, end);
}

template <>
void update_sgd(const SGDArrays<float>& arrays, const SGDScalars<float>& scalars,
                std::int64_t begin, std::int64_t end) {
  sgd_float(arrays, scalars, begin, end);
}

template <>
void update_sgd(const SGDArrays<double>& arrays, const SGDScalars<double>& scalars,
                std::int64_t begin, std::int64_t end) {
  sgd_double(arrays, scalars, begin, end);
}

}  // namespace convoy::optim
