// Lines and the progress bar.
#include "programs/train_gpt/console.h"

#include "convoy/base/check.h"
#include "programs/train_gpt/generate.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdarg>
#include <cstdio>

#include <sys/ioctl.h>
#include <unistd.h>

namespace convoy::train_gpt {
namespace {

constexpr auto kRedraw = std::chrono::milliseconds(100);
constexpr std::int64_t kMostStepsPerLine = 100;

[[gnu::format(printf, 1, 2)]] std::string format(const char* pattern, ...) {
  std::array<char, 512> text{};
  va_list arguments;
  va_start(arguments, pattern);
  std::vsnprintf(text.data(), text.size(), pattern, arguments);
  va_end(arguments);
  return text.data();
}

int terminal_columns() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

void put(std::string_view text) {
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

double tokens_per_s(const StepFacts& facts) {
  return static_cast<double>(facts.tokens) / facts.step_s;
}

std::string step_text(const StepFacts& facts, std::int64_t steps) {
  const int width = static_cast<int>(std::to_string(steps).size());
  std::string text =
      format("step %*lld/%lld  loss %.4f  lr %.1e", width, static_cast<long long>(facts.step),
             static_cast<long long>(steps), static_cast<double>(facts.loss), facts.lr);
  if (facts.grad_norm) text += format("  norm %.3f", *facts.grad_norm);
  return text + format("  %.3f s  %s tokens/s", facts.step_s,
                       grouped(std::llround(tokens_per_s(facts))).c_str());
}

}  // namespace

Console::Console(bool speaks, std::int64_t steps)
    : speaks_(speaks), terminal_(::isatty(STDOUT_FILENO) == 1), steps_(steps) {}

void Console::line(std::string_view text) {
  if (!speaks_) return;
  clear_bar();
  put(concat(text, "\n"));
}

void Console::start(const StartFacts& facts, const Options& options) {
  line(format("train_gpt: %s, %s parameters; %s, %d rank%s of %d thread%s", options.model.c_str(),
              grouped(facts.parameters).c_str(), std::string(to_string(facts.strategy)).c_str(),
              facts.world, facts.world == 1 ? "" : "s", facts.threads,
              facts.threads == 1 ? "" : "s"));
  line(format("batch: %lld windows of %lld bytes in a step, %lld in a forward",
              static_cast<long long>(facts.plan.global_batch),
              static_cast<long long>(options.config.seq),
              static_cast<long long>(facts.plan.micro_batch)));
  line(
      format("data: %s bytes, xxh3 %s; %lld windows held out, whose bytes have an entropy of "
             "%.4f nats",
             grouped(facts.data_bytes).c_str(), facts.data_xxh3.c_str(),
             static_cast<long long>(facts.validation_windows), facts.unigram_nats));
}

void Console::step(const StepFacts& facts) {
  if (!speaks_) return;
  const auto now = Clock::now();
  if (!first_step_) first_step_ = now;
  if (terminal_) {
    if (now - last_draw_ < kRedraw && facts.step != steps_) return;
    last_draw_ = now;
    draw_bar(facts);
    return;
  }
  const std::int64_t every = std::clamp<std::int64_t>(steps_ / 40, 1, kMostStepsPerLine);
  if (facts.step % every == 0 || facts.step == 1 || facts.step == steps_) {
    line(step_text(facts, steps_));
  }
}

void Console::draw_bar(const StepFacts& facts) {
  const double elapsed = std::chrono::duration<double>(Clock::now() - *first_step_).count();
  const auto done = static_cast<double>(facts.step - 1);  // Since the first step ended.
  const auto left = static_cast<double>(steps_ - facts.step);
  std::string text = format("%lld/%lld  loss %.4f  %s tokens/s", static_cast<long long>(facts.step),
                            static_cast<long long>(steps_), static_cast<double>(facts.loss),
                            grouped(std::llround(tokens_per_s(facts))).c_str());
  if (done > 0) text += "  ETA " + clock_text(elapsed / done * left);
  const double share = static_cast<double>(facts.step) / static_cast<double>(steps_);
  put(concat("\r", progress_line(text, share, terminal_columns()), "\x1b[K"));
  bar_shown_ = true;
  if (facts.step == steps_) {
    put("\n");
    bar_shown_ = false;
  }
}

void Console::clear_bar() {
  if (bar_shown_) put("\r\x1b[K");
  bar_shown_ = false;
}

void Console::evaluation(std::int64_t step, const Evaluation& evaluation, double unigram_nats) {
  line(
      format("validation after step %lld: loss %.4f nats a byte over %lld windows (bytes alone: "
             "%.4f)",
             static_cast<long long>(step), evaluation.loss,
             static_cast<long long>(evaluation.windows), unigram_nats));
}

void Console::sample(std::string_view prompt, std::string_view text) {
  line("sample:");
  line(printable(concat(prompt, text)));
}

std::string progress_line(std::string_view text, double share, int columns) {
  constexpr int kFewestCells = 5;
  constexpr int kMostCells = 30;
  const int width =
      std::max(columns - 1, 0);  // In the last column some terminals begin a new line.
  const int cells = std::min(width - static_cast<int>(text.size()) - 3, kMostCells);
  if (cells < kFewestCells) return std::string(text.substr(0, static_cast<std::size_t>(width)));
  const auto full = static_cast<std::size_t>(share * cells);
  return concat("[", std::string(full, '#'),
                std::string(static_cast<std::size_t>(cells) - full, '.'), "] ", text);
}

std::string grouped(std::int64_t value) {
  const std::string digits = std::to_string(value);
  std::string text;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const std::size_t left = digits.size() - i;
    if (left % 3 == 0 && i > 0 && digits[i - 1] != '-') text += ',';
    text += digits[i];
  }
  return text;
}

std::string clock_text(double seconds) {
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 60) return format("%llds", whole);
  if (whole < 3600) return format("%lld:%02lld", whole / 60, whole % 60);
  return format("%lld:%02lld:%02lld", whole / 3600, whole / 60 % 60, whole % 60);
}

}  // namespace convoy::train_gpt
