// What a person sees: the progress line at every width, numbers and times as text.
#include "programs/train_gpt/console.h"

#include "support/catch.h"

#include <string>

using namespace convoy::train_gpt;

TEST_CASE("console: a progress line is shorter than the terminal, and the bar goes first") {
  const std::string text = "12/40  loss 2.3456  1,234 tokens/s  ETA 1:23";
  REQUIRE(progress_line(text, 0.5, 200) == "[###############...............] " + text);
  REQUIRE(progress_line(text, 0, 200).find('#') == std::string::npos);
  REQUIRE(progress_line(text, 1, 200).find('.') > progress_line(text, 1, 200).find(']'));
  for (int columns = 0; columns <= 100; ++columns) {
    CAPTURE(columns);
    const std::string line = progress_line(text, 0.3, columns);
    REQUIRE(line.size() < static_cast<std::size_t>(std::max(columns, 1)));
    if (columns > 60) REQUIRE(line.front() == '[');
    if (columns > static_cast<int>(text.size())) REQUIRE(line.ends_with(text));
    if (columns < 50) REQUIRE(text.starts_with(line));
  }
}

TEST_CASE("console: numbers are grouped, times are short") {
  REQUIRE(grouped(0) == "0");
  REQUIRE(grouped(-1234) == "-1,234");
  REQUIRE(grouped(123) == "123");
  REQUIRE(grouped(10'942'464) == "10,942,464");
  REQUIRE(clock_text(0.2) == "0s");
  REQUIRE(clock_text(59.4) == "59s");
  REQUIRE(clock_text(187) == "3:07");
  REQUIRE(clock_text(7380) == "2:03:00");
}
