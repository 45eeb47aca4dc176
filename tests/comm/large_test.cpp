// One tensor of more than 2^31 bytes. By itself, because it needs gigabytes and seconds.
#include "comm/rank_processes.h"
#include "support/catch.h"

#include <chrono>

using namespace convoy::test;

TEST_CASE(
    "C069: tensors of more than 2^31 bytes are moved exactly, or refused alike on all ranks") {
  RankProcesses ranks(2, "large");
  const auto results = ranks.finish_all(std::chrono::seconds(280));
  for (const auto& result : results) {
    INFO(result.output);
    const bool is_done = result.exit_code == 0 && result.says("done");
    const bool is_refused = result.exit_code == 1 && result.says("error memory") &&
                            result.output == results.front().output;
    CHECK((is_done || is_refused));
  }
}
