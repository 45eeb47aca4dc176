// ExactSum against 128-bit integers, at both ends of the range and in any order.
#include "optim/exact_sum.h"

#include "support/catch.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <span>
#include <vector>

namespace {

using convoy::optim::ExactSum;

/// The rounded sum of `values`, which must be the same one at a time and all at once.
double sum(const std::vector<double>& values) {
  ExactSum total;
  for (const double value : values) total.add(value);
  ExactSum at_once;
  at_once.add(std::span<const double>(values));
  REQUIRE(total.words() == at_once.words());
  return total.rounded();
}

/// Random values that are multiples of 2^scale, and their correctly rounded sum.
struct Sample {
  std::vector<double> values;
  double expected;
};

Sample make_sample(unsigned seed, int count, int scale) {
  std::mt19937_64 generator(seed);
  unsigned __int128 exact = 0;
  Sample sample;
  for (int i = 0; i < count; ++i) {
    const auto mantissa = generator() >> 11;                // 53 bits
    const auto shift = static_cast<int>(generator() % 60);  // below 2^113 each
    exact += static_cast<unsigned __int128>(mantissa) << shift;
    sample.values.push_back(std::ldexp(static_cast<double>(mantissa), shift + scale));
  }
  // The conversion of a 128-bit integer rounds once, to nearest even.
  sample.expected = std::ldexp(static_cast<double>(exact), scale);
  return sample;
}

}  // namespace

TEST_CASE("ExactSum rounds once, wherever in the range of double") {
  for (const int scale : {-1074, -1060, -500, -32, -1, 0, 31, 400, 890}) {
    for (unsigned seed = 0; seed < 50; ++seed) {
      auto sample = make_sample(seed, 1 + static_cast<int>(seed) * 7, scale);
      REQUIRE(sum(sample.values) == sample.expected);
      std::shuffle(sample.values.begin(), sample.values.end(), std::mt19937(seed));
      REQUIRE(sum(sample.values) == sample.expected);
    }
  }
}

TEST_CASE("ExactSum: words of parts add up to the words of the whole") {
  for (unsigned seed = 0; seed < 20; ++seed) {
    const auto sample = make_sample(seed, 200, -40);
    for (const int parts : {1, 2, 3, 5}) {
      std::array<std::int64_t, ExactSum::kWords> words{};
      ExactSum merged;
      for (int part = 0; part < parts; ++part) {
        ExactSum own;
        for (std::size_t i = static_cast<std::size_t>(part); i < sample.values.size();
             i += static_cast<std::size_t>(parts)) {
          own.add(sample.values[i]);
        }
        merged.add(own);
        const auto more = own.words();
        for (std::size_t i = 0; i < words.size(); ++i) words[i] += more[i];
      }
      REQUIRE(ExactSum::from_words(words).rounded() == sample.expected);
      REQUIRE(merged.rounded() == sample.expected);
    }
  }
}

TEST_CASE("ExactSum: ends of the range, ties and what is not finite") {
  const double smallest = std::numeric_limits<double>::denorm_min();
  const double largest = std::numeric_limits<double>::max();
  const double infinity = std::numeric_limits<double>::infinity();
  const double nan = std::numeric_limits<double>::quiet_NaN();
  REQUIRE(sum({}) == 0.0);
  REQUIRE(sum({0.0, -0.0}) == 0.0);
  REQUIRE(sum({smallest, smallest, smallest}) == 3 * smallest);
  REQUIRE(sum({largest}) == largest);
  REQUIRE(sum({largest, smallest}) == largest);
  REQUIRE(sum({largest, largest}) == infinity);
  REQUIRE(sum(std::vector<double>(1000, largest)) == infinity);
  // Half of the last place: to the even neighbour, unless anything at all lies above the half.
  const double half = std::ldexp(1.0, -53);
  const double last = std::ldexp(1.0, -52);
  REQUIRE(sum({1.0, half}) == 1.0);
  REQUIRE(sum({1.0, last, half}) == 1.0 + 2 * last);
  REQUIRE(sum({1.0, half, smallest}) == 1.0 + last);
  REQUIRE(sum({2.0 - last, half}) == 2.0);  // The carry reaches the next power of two.
  REQUIRE(sum({1.0, infinity}) == infinity);
  REQUIRE(std::isnan(sum({1.0, nan})));
  REQUIRE(std::isnan(sum({infinity, nan, 2.0})));
}

TEST_CASE("ExactSum: many at once, of like and unlike size, at the ends of the range") {
  std::mt19937_64 generator(9);
  std::uniform_real_distribution<double> mantissa(1.0, 2.0);
  for (const int center : {-1060, -1000, -905, -895, -100, 0, 100, 895, 905, 1000}) {
    for (const int spread : {0, 1, 20, 36, 37, 38, 60, 200}) {
      for (const int count : {1, 7, 8, 127, 128, 129, 300}) {
        std::vector<double> values;
        for (int i = 0; i < count; ++i) {
          const int exponent = center - static_cast<int>(generator() % (spread + 1U));
          values.push_back(generator() % 11 == 0 ? 0.0 : std::ldexp(mantissa(generator), exponent));
        }
        sum(values);  // Checks that both ways agree.
      }
    }
  }
  sum(std::vector<double>(200, 0.0));
  std::vector<double> mixed(200, 1.0);
  mixed[150] = std::numeric_limits<double>::infinity();
  REQUIRE(std::isinf(sum(mixed)));
  mixed[20] = -std::numeric_limits<double>::quiet_NaN();
  REQUIRE(std::isnan(sum(mixed)));
}

TEST_CASE("ExactSum: many summands carry into the limbs above") {
  ExactSum total;
  const double value = std::nextafter(2.0, 0.0);  // All mantissa bits set.
  for (int i = 0; i < (1 << 20); ++i) total.add(value);
  REQUIRE(total.rounded() == std::ldexp(value, 20));
}
