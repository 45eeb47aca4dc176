// Parses and answers the values of --tee and --redirects.
#include "programs/convoyrun/stream_choice.h"

#include "convoy/base/parse.h"

#include <algorithm>
#include <limits>

namespace convoy::launcher {

std::string_view to_string(Stream stream) noexcept {
  return stream == Stream::kOut ? "stdout" : "stderr";
}

std::optional<StreamChoice> StreamChoice::parse(std::string_view text) {
  if (text.find(':') == std::string_view::npos) {
    const auto mask = parse_int(text, 0, 3);
    if (!mask) return std::nullopt;
    return StreamChoice(static_cast<int>(*mask));
  }
  StreamChoice choice;
  for (;;) {
    const std::string_view entry = text.substr(0, text.find(','));
    const std::size_t colon = entry.find(':');
    if (colon == std::string_view::npos) return std::nullopt;
    const auto rank = parse_int(entry.substr(0, colon), 0, std::numeric_limits<int>::max());
    const auto mask = parse_int(entry.substr(colon + 1), 0, 3);
    if (!rank || !mask) return std::nullopt;
    if (!choice.by_rank_.emplace(static_cast<int>(*rank), static_cast<int>(*mask)).second) {
      return std::nullopt;
    }
    if (entry.size() == text.size()) return choice;
    text.remove_prefix(entry.size() + 1);
  }
}

bool StreamChoice::covers(int local_rank, Stream stream) const {
  const auto found = by_rank_.find(local_rank);
  const int mask = found == by_rank_.end() ? everywhere_ : found->second;
  return (mask & (stream == Stream::kOut ? 1 : 2)) != 0;
}

bool StreamChoice::is_empty() const {
  return everywhere_ == 0 &&
         std::all_of(by_rank_.begin(), by_rank_.end(), [](const auto& e) { return e.second == 0; });
}

int StreamChoice::highest_rank() const { return by_rank_.empty() ? -1 : by_rank_.rbegin()->first; }

}  // namespace convoy::launcher
