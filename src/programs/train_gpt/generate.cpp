// Draws the next byte again and again.
#include "programs/train_gpt/generate.h"

#include "convoy/base/check.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <vector>

namespace convoy::train_gpt {
namespace {

constexpr double kTemperature = 0.8;

/// Length of the UTF-8 sequence that begins `bytes`, 0 if it is none.
std::size_t utf8_length(std::string_view bytes) {
  const auto lead = static_cast<unsigned char>(bytes[0]);
  const std::size_t length = lead < 0x80   ? 1
                             : lead < 0xC2 ? 0
                             : lead < 0xE0 ? 2
                             : lead < 0xF0 ? 3
                             : lead < 0xF5 ? 4
                                           : 0;
  if (length > bytes.size()) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((static_cast<unsigned char>(bytes[i]) & 0xC0U) != 0x80) return 0;
  }
  return length;
}

}  // namespace

std::string generate(Strategy& strategy, std::string_view prompt, std::int64_t count,
                     std::uint64_t seed) {
  CONVOY_REQUIRE(!prompt.empty(), kInvalidArgument,
                 "a text needs a beginning: the prompt is empty");
  at::NoGradGuard no_grad;
  strategy.model()->eval();
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  std::vector<std::int64_t> tokens;
  for (const char byte : prompt) tokens.push_back(static_cast<unsigned char>(byte));
  const auto seq = static_cast<std::size_t>(strategy.model()->config.seq);
  std::string text;
  for (std::int64_t i = 0; i < count; ++i) {
    const std::size_t context = std::min(tokens.size(), seq);
    const auto input =
        at::tensor(at::ArrayRef<std::int64_t>(tokens).slice(tokens.size() - context), at::kLong)
            .unsqueeze(0);
    const auto logits = strategy.forward(input)[0][-1].narrow(0, 0, 256) / kTemperature;
    const auto drawn = at::multinomial(at::softmax(logits, 0), 1, false, generator);
    tokens.push_back(drawn.item<std::int64_t>());
    text += static_cast<char>(tokens.back());
  }
  strategy.model()->train();
  return text;
}

std::string printable(std::string_view bytes) {
  std::string text;
  while (!bytes.empty()) {
    const std::size_t length = utf8_length(bytes);
    const auto lead = static_cast<unsigned char>(bytes[0]);
    const bool control =
        length == 1 && (lead < 0x20 || lead == 0x7F) && lead != '\n' && lead != '\t';
    const std::size_t taken = std::max<std::size_t>(length, 1);
    text += length == 0 || control ? std::string_view(".") : bytes.substr(0, taken);
    bytes.remove_prefix(taken);
  }
  return text;
}

}  // namespace convoy::train_gpt
