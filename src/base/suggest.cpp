// Edit distance, and the nearest of a list of names.
#include "convoy/base/suggest.h"

#include <algorithm>
#include <cctype>
#include <vector>

namespace convoy {
namespace {

std::string plain(std::string_view name) {
  std::string out(name);
  for (auto& c : out) {
    c = c == '_' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return out;
}

}  // namespace

std::size_t edit_distance(std::string_view a, std::string_view b) {
  // Three rows of the table are enough: a swap looks two rows back.
  std::vector<std::size_t> before_last(b.size() + 1), last(b.size() + 1), row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before_last, last);
    std::swap(last, row);
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replace = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      row[j] = std::min({last[j] + 1, row[j - 1] + 1, replace});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        row[j] = std::min(row[j], before_last[j - 2] + 1);
      }
    }
  }
  return row[b.size()];
}

std::optional<std::string> nearest_name(std::string_view given,
                                        std::span<const std::string> names) {
  const auto wanted = plain(given);
  std::optional<std::string> nearest;
  std::size_t best = 0;
  for (const auto& name : names) {
    const auto candidate = plain(name);
    auto distance = edit_distance(wanted, candidate);
    // A beginning of three letters or more is how people shorten names.
    if (wanted.size() >= 3 && candidate.starts_with(wanted))
      distance = std::min<std::size_t>(distance, 1);
    // About one slip in three letters; more is another word.
    if (distance > std::max<std::size_t>(1, std::max(wanted.size(), candidate.size()) / 3))
      continue;
    if (!nearest || distance < best) {
      nearest = name;
      best = distance;
    }
  }
  return nearest;
}

std::string did_you_mean(std::string_view given, std::span<const std::string> names) {
  const auto nearest = nearest_name(given, names);
  return nearest ? "; did you mean '" + *nearest + "'?" : std::string();
}

}  // namespace convoy
