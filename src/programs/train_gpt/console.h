// What a person sees: a progress bar on a terminal, plain lines in a log.
#pragma once

#include "programs/train_gpt/events.h"

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace convoy::train_gpt {

/// Writes to standard output, on rank 0; the other ranks' consoles are silent.
class Console {
 public:
  Console(bool speaks, std::int64_t steps);

  /// A line of its own, above the bar.
  void line(std::string_view text);
  void start(const StartFacts& facts, const Options& options);
  void step(const StepFacts& facts);
  void evaluation(std::int64_t step, const Evaluation& evaluation, double unigram_nats);
  /// Text that the model wrote.
  void sample(std::string_view prompt, std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;

  void draw_bar(const StepFacts& facts);
  void clear_bar();

  bool speaks_;
  bool terminal_;
  bool bar_shown_ = false;
  std::int64_t steps_;
  std::optional<Clock::time_point> first_step_;
  Clock::time_point last_draw_{};
};

/// A bar of which `share` (0 to 1) is full, and `text`, in less than `columns`: a line that wraps
/// could not be drawn over. Where there is no room for both, the bar is left out.
std::string progress_line(std::string_view text, double share, int columns);
/// 1234567 as "1,234,567".
std::string grouped(std::int64_t value);
/// Seconds as "45s", "3:07" or "2:03:00".
std::string clock_text(double seconds);

}  // namespace convoy::train_gpt
