// A small levelled logger: whole lines, one write each, never more than a terminal can bear.
#pragma once

#include "convoy/base/check.h"

#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace convoy {

enum class LogLevel { kError, kWarn, kInfo, kDebug };

std::string_view to_string(LogLevel level) noexcept;
/// From "error", "warn", "info" or "debug".
std::optional<LogLevel> parse_log_level(std::string_view text) noexcept;

/// Writes lines "convoy [rank 3] warn: text" to a descriptor. A value: copies share the descriptor
/// and the rate limit. Lines below the level cost a comparison; their arguments are not formatted.
/// Thread-safe. Never throws and never fails: a line that cannot be written is lost.
class Logger {
 public:
  struct Options {
    LogLevel level = LogLevel::kWarn;
    int rank = -1;  ///< -1: no rank in the prefix.
    int fd = 2;     ///< Not owned.
    int max_lines_a_second =
        50;  ///< More are left out, and counted in the next line that is written.
  };

  Logger() : Logger(Options{}) {}
  explicit Logger(Options options);

  bool is_on(LogLevel level) const noexcept;

  template <typename... Parts>
  void error(const Parts&... parts) const noexcept {
    log(LogLevel::kError, parts...);
  }
  template <typename... Parts>
  void warn(const Parts&... parts) const noexcept {
    log(LogLevel::kWarn, parts...);
  }
  template <typename... Parts>
  void info(const Parts&... parts) const noexcept {
    log(LogLevel::kInfo, parts...);
  }
  template <typename... Parts>
  void debug(const Parts&... parts) const noexcept {
    log(LogLevel::kDebug, parts...);
  }

 private:
  template <typename... Parts>
  void log(LogLevel level, const Parts&... parts) const noexcept {
    if (!is_on(level)) return;
    try {
      write(level, concat(parts...));
    } catch (...) {  // No memory for the line: it is lost.
    }
  }
  void write(LogLevel level, std::string_view text) const;

  struct State;
  std::shared_ptr<State> state_;
};

}  // namespace convoy
