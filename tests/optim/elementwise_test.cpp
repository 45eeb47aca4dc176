// The kernels give each element the same bits wherever it lies and however the array is cut.
#include "optim/elementwise.h"

#include "support/catch.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace convoy::optim;

constexpr int kLengths[] = {0, 1, 7, 15, 17, 40, 1003};

template <typename T>
std::vector<T> random_values(std::size_t count, unsigned seed, bool positive = false) {
  std::mt19937 generator(seed);
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (auto& value : values) {
    // Magnitudes over many binades, so that rounding differs from element to element.
    const double x = normal(generator) * std::exp2(static_cast<double>(generator() % 20) - 15);
    value = static_cast<T>(positive ? std::abs(x) : x);
  }
  return values;
}

template <typename T>
bool same_bits(const std::vector<T>& a, const std::vector<T>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0);
}

/// The arrays of one AdamW parameter, `offset` elements into their allocation.
template <typename T>
struct AdamWCase {
  AdamWCase(std::size_t count, std::size_t shift, bool with_max)
      : offset(shift),
        amsgrad(with_max),
        param(random_values<T>(count + shift, 1)),
        grad(random_values<T>(count + shift, 2)),
        exp_avg(random_values<T>(count + shift, 3)),
        exp_avg_sq(random_values<T>(count + shift, 4, true)),
        max_exp_avg_sq(random_values<T>(count + shift, 5, true)) {}

  AdamWArrays<T> arrays() {
    return {param.data() + offset, grad.data() + offset, exp_avg.data() + offset,
            exp_avg_sq.data() + offset, amsgrad ? max_exp_avg_sq.data() + offset : nullptr};
  }
  bool operator==(const AdamWCase& other) const {
    return same_bits(param, other.param) && same_bits(exp_avg, other.exp_avg) &&
           same_bits(exp_avg_sq, other.exp_avg_sq) &&
           same_bits(max_exp_avg_sq, other.max_exp_avg_sq);
  }

  std::size_t offset;
  bool amsgrad;
  std::vector<T> param, grad, exp_avg, exp_avg_sq, max_exp_avg_sq;
};

template <typename T>
AdamWScalars<T> adamw_scalars() {
  return {.keep = static_cast<T>(1 - 3e-4 * 0.1),
          .one_minus_beta1 = static_cast<T>(1 - 0.9),
          .beta2 = static_cast<T>(0.999),
          .one_minus_beta2 = static_cast<T>(1 - 0.999),
          .step_size = static_cast<T>(2.3e-4),
          .eps = static_cast<T>(7e-9)};
}

/// The formula, one element at a time.
template <typename T>
void expected_adamw(AdamWCase<T>& c, const AdamWScalars<T>& s) {
  auto a = c.arrays();
  for (std::size_t i = 0; i < c.param.size() - c.offset; ++i) {
    a.exp_avg[i] = a.exp_avg[i] + (a.grad[i] - a.exp_avg[i]) * s.one_minus_beta1;
    a.exp_avg_sq[i] = a.exp_avg_sq[i] * s.beta2 + (s.one_minus_beta2 * a.grad[i]) * a.grad[i];
    T largest = a.exp_avg_sq[i];
    if (c.amsgrad) largest = a.max_exp_avg_sq[i] = std::max(a.max_exp_avg_sq[i], largest);
    a.param[i] = a.param[i] * s.keep - (s.step_size * a.exp_avg[i]) / (std::sqrt(largest) + s.eps);
  }
}

template <typename T>
void check_adamw() {
  const auto scalars = adamw_scalars<T>();
  for (const bool amsgrad : {false, true}) {
    for (const int length : kLengths) {
      for (const std::size_t offset : {0, 1, 3}) {
        const AdamWCase<T> before(length, offset, amsgrad);
        auto expected = before;
        expected_adamw(expected, scalars);
        for (std::int64_t cut = 0; cut <= length; ++cut) {
          auto got = before;
          update_adamw(got.arrays(), scalars, 0, cut);
          update_adamw(got.arrays(), scalars, cut, length);
          REQUIRE(got == expected);
        }
      }
    }
  }
}

template <typename T>
void expected_sgd(T* param, const T* grad, T* buffer, std::size_t count, const SGDScalars<T>& s) {
  for (std::size_t i = 0; i < count; ++i) {
    T direction = grad[i];
    if (s.weight_decay != 0) direction = grad[i] + s.weight_decay * param[i];
    if (buffer != nullptr) {
      buffer[i] = s.first ? direction : s.momentum * buffer[i] + s.one_minus_dampening * direction;
      direction = s.nesterov ? direction + s.momentum * buffer[i] : buffer[i];
    }
    param[i] = param[i] - s.lr * direction;
  }
}

template <typename T>
void check_sgd() {
  for (int variant = 0; variant < 16; ++variant) {
    const bool momentum = (variant & 1) != 0;
    const SGDScalars<T> scalars{.weight_decay = static_cast<T>((variant & 2) != 0 ? 0.013 : 0),
                                .momentum = static_cast<T>(0.9),
                                .one_minus_dampening = static_cast<T>(0.7),
                                .lr = static_cast<T>(0.03),
                                .first = (variant & 4) != 0,
                                .nesterov = (variant & 8) != 0};
    for (const int length : kLengths) {
      for (const std::size_t offset : {0, 1, 3}) {
        const auto grad = random_values<T>(length + offset, 2);
        const auto old_param = random_values<T>(length + offset, 1);
        const auto old_buffer = random_values<T>(length + offset, 3);
        auto expected_param = old_param;
        auto expected_buffer = old_buffer;
        expected_sgd(expected_param.data() + offset, grad.data() + offset,
                     momentum ? expected_buffer.data() + offset : nullptr,
                     static_cast<std::size_t>(length), scalars);
        for (std::int64_t cut = 0; cut <= length; ++cut) {
          auto param = old_param;
          auto buffer = old_buffer;
          const SGDArrays<T> arrays{param.data() + offset, grad.data() + offset,
                                    momentum ? buffer.data() + offset : nullptr};
          update_sgd(arrays, scalars, 0, cut);
          update_sgd(arrays, scalars, cut, length);
          REQUIRE(same_bits(param, expected_param));
          REQUIRE(same_bits(buffer, expected_buffer));
        }
      }
    }
  }
}

}  // namespace

TEST_CASE("AdamW kernel: every length, cut and start gives the bits of the plain formula") {
  check_adamw<float>();
  check_adamw<double>();
}

TEST_CASE("SGD kernel: every length, cut and start gives the bits of the plain formula") {
  check_sgd<float>();
  check_sgd<double>();
}

TEST_CASE("AdamW kernel: amsgrad keeps a nan, as torch's maximum does") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const int length : {1, 40}) {
    AdamWCase<float> c(static_cast<std::size_t>(length), 0, true);
    c.max_exp_avg_sq[0] = nan;
    c.grad[static_cast<std::size_t>(length) - 1] = nan;
    update_adamw(c.arrays(), adamw_scalars<float>(), 0, length);
    REQUIRE(std::isnan(c.max_exp_avg_sq[0]));
    REQUIRE(std::isnan(c.max_exp_avg_sq[static_cast<std::size_t>(length) - 1]));
    REQUIRE(std::isnan(c.param[0]));
  }
}
