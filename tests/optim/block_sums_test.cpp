// Block sums: one fixed order of additions, whatever the length and the place in memory.
#include "optim/block_sums.h"

#include "support/catch.h"

#include <cmath>
#include <limits>
#include <random>
#include <vector>

namespace {

using namespace convoy::optim;

constexpr int kBlock = 32;
constexpr int kLengths[] = {0, 1, 7, 15, 17, 31, 32, 33, 40, 64, 1003};

template <typename T>
std::vector<T> random_values(std::size_t count) {
  std::mt19937 generator(static_cast<unsigned>(count));
  std::normal_distribution<double> normal;
  std::vector<T> values(count);
  for (auto& value : values) {
    value = static_cast<T>(normal(generator) * std::exp2(static_cast<double>(generator() % 30)));
  }
  return values;
}

/// Lane l adds elements l, l + 8, ... in turn; then the lanes as documented.
template <typename T, typename Term>
double expected_block(const T* values, int count, const Term& term) {
  double lanes[8] = {};
  for (int i = 0; i < kBlock; ++i) {
    const double x = i < count ? static_cast<double>(values[i]) : 0.0;
    lanes[i % 8] = i < 8 ? term(x) : lanes[i % 8] + term(x);
  }
  const double a = lanes[0] + lanes[4], b = lanes[1] + lanes[5], c = lanes[2] + lanes[6],
               d = lanes[3] + lanes[7];
  return (a + c) + (b + d);
}

template <typename T, typename Kernel, typename Term>
void check(const Kernel& kernel, const Term& term) {
  for (const int length : kLengths) {
    for (const std::size_t offset : {0, 1, 5}) {
      const auto values = random_values<T>(static_cast<std::size_t>(length) + offset);
      const int blocks = (length + kBlock - 1) / kBlock;
      std::vector<double> sums(static_cast<std::size_t>(blocks) + 1, -1.0);
      kernel(values.data() + offset, length, sums.data());
      for (int k = 0; k < blocks; ++k) {
        REQUIRE(sums[static_cast<std::size_t>(k)] ==
                expected_block(values.data() + offset + k * kBlock,
                               std::min(kBlock, length - k * kBlock), term));
      }
      REQUIRE(sums[static_cast<std::size_t>(blocks)] == -1.0);  // Nothing is written beyond.
    }
  }
}

template <typename T>
void check_all() {
  check<T>([](const T* v, std::int64_t n, double* s) { block_sums_of_squares(v, n, s); },
           [](double x) { return x * x; });
  check<T>([](const T* v, std::int64_t n, double* s) { block_sums_of_magnitudes(v, n, s); },
           [](double x) { return std::abs(x); });
}

}  // namespace

TEST_CASE("block sums have one fixed order of additions") {
  check_all<float>();
  check_all<double>();
}

TEST_CASE("block sums of powers follow the formula") {
  const auto values = random_values<float>(70);
  double sums[3];
  block_sums_of_powers(values.data(), 70, 3.0, sums);
  for (int k = 0; k < 3; ++k) {
    double expected = 0;
    for (int i = k * kBlock; i < std::min(70, (k + 1) * kBlock); ++i) {
      expected += std::pow(std::abs(static_cast<double>(values[static_cast<std::size_t>(i)])), 3.0);
    }
    REQUIRE(sums[k] == expected);
  }
}

TEST_CASE("largest magnitude: signs, infinities, nan and nothing") {
  const float inf = std::numeric_limits<float>::infinity();
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const std::size_t length : {1, 15, 33, 1003}) {
    for (std::size_t at = 0; at < length; at += 1 + length / 7) {
      std::vector<float> values(length, -0.5f);
      values[at] = -7.25f;
      REQUIRE(largest_magnitude(values.data(), static_cast<std::int64_t>(length)) == 7.25);
      values[at] = -inf;
      REQUIRE(largest_magnitude(values.data(), static_cast<std::int64_t>(length)) ==
              static_cast<double>(inf));
      values[at] = -nan;
      values[0] = at == 0 ? -nan : inf;
      REQUIRE(std::isnan(largest_magnitude(values.data(), static_cast<std::int64_t>(length))));
    }
  }
  REQUIRE(largest_magnitude(static_cast<const float*>(nullptr), 0) == 0.0);
  const std::vector<double> doubles = {1e300, -1e301, 5.0};
  REQUIRE(largest_magnitude(doubles.data(), 3) == 1e301);
}
