// Formats log lines, limits their rate and writes each with one call.
#include "convoy/base/log.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <mutex>

#include <unistd.h>

namespace convoy {
namespace {

constexpr std::array<std::string_view, 4> kNames{"error", "warn", "info", "debug"};

}  // namespace

std::string_view to_string(LogLevel level) noexcept {
  return kNames[static_cast<std::size_t>(level)];
}

std::optional<LogLevel> parse_log_level(std::string_view text) noexcept {
  const auto* found = std::find(kNames.begin(), kNames.end(), text);
  if (found == kNames.end()) return std::nullopt;
  return static_cast<LogLevel>(found - kNames.begin());
}

struct Logger::State {
  using Clock = std::chrono::steady_clock;

  explicit State(Options given) : options(given) {}

  const Options options;
  std::mutex mutex;
  Clock::time_point second_began{};
  int lines_in_second = 0;
  int left_out = 0;
};

Logger::Logger(Options options) : state_(std::make_shared<State>(options)) {}

bool Logger::is_on(LogLevel level) const noexcept { return level <= state_->options.level; }

void Logger::write(LogLevel level, std::string_view text) const {
  std::string line = "convoy ";
  if (state_->options.rank >= 0) line += concat("[rank ", state_->options.rank, "] ");
  line += concat(to_string(level), ": ", text);
  std::replace(line.begin(), line.end(), '\n', ' ');

  const std::lock_guard lock(state_->mutex);
  const auto now = State::Clock::now();
  if (now - state_->second_began >= std::chrono::seconds(1)) {
    state_->second_began = now;
    state_->lines_in_second = 0;
  }
  if (++state_->lines_in_second > state_->options.max_lines_a_second) {
    ++state_->left_out;
    return;
  }
  if (state_->left_out > 0) line += concat(" (", state_->left_out, " lines left out before this)");
  state_->left_out = 0;
  line += '\n';
  // One call, so that lines of several ranks on one terminal do not cut each other. A short write
  // or an error loses the rest: a logger that waits would be worse.
  [[maybe_unused]] const auto written = ::write(state_->options.fd, line.data(), line.size());
}

}  // namespace convoy
