// Entropy of a histogram.
#include "convoy/data/unigram.h"

#include <cmath>
#include <numeric>

namespace convoy::data {

double ByteHistogram::entropy_nats() const {
  const std::int64_t total = std::accumulate(counts_.begin(), counts_.end(), std::int64_t{0});
  double entropy = 0;
  for (const std::int64_t count : counts_) {
    if (count == 0) continue;
    const double share = static_cast<double>(count) / static_cast<double>(total);
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace convoy::data
