// What the trace shows of units: forwards, backwards and gathers, in the order they happen.
#include "fsdp/harness.h"
#include "support/catch.h"

#include <algorithm>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

/// The spans of one rank's training step, by begin.
std::vector<trace::Event> traced_step(Rank& rank, const fsdp::Options& options) {
  const auto sink = std::make_shared<trace::MemorySink>();
  const auto comm =
      make_communicator(rank.job(), {.timeout = 60s, .name = "traced", .trace = sink});
  TinyGpt model;
  FullyShardedDataParallel fsdp(model, comm, options);
  const auto train = [&](int step) {
    const TinyBatch batch = tiny_batch(rank.rank(), step);
    tiny_loss(model(batch.tokens), batch.targets).backward();
    model->zero_grad();
  };
  train(0);  // Learns the order that prefetching follows.
  const auto before = sink->events().size();
  train(1);
  auto events = sink->events();
  events.erase(events.begin(), events.begin() + static_cast<std::ptrdiff_t>(before));
  std::stable_sort(events.begin(), events.end(),
                   [](const auto& a, const auto& b) { return a.begin_ns < b.begin_ns; });
  return events;
}

std::vector<std::string> of_name(const std::vector<trace::Event>& events, std::string_view name) {
  std::vector<std::string> details;
  for (const auto& event : events) {
    if (event.name == name && event.category != "wait") details.push_back(event.detail);
  }
  return details;
}

const trace::Event& nth(const std::vector<trace::Event>& events, std::string_view name,
                        std::string_view detail, int index) {
  for (const auto& event : events) {
    if (event.name == name && event.detail == detail && event.category != "wait" && index-- == 0) {
      return event;
    }
  }
  throw Error(ErrorKind::kInternal, concat("no span ", name, " of ", detail));
}

}  // namespace

TEST_CASE("the trace shows prefetches on the private gather path in the order they happen") {
  const int world = GENERATE(1, 2, 3);
  CAPTURE(world);
  ranks(world, [](Rank& rank) {
    const auto events =
        traced_step(rank, {.wrap = wrap_units_of<TinyBlock>(), .shared_gather = false});
    // Each unit travels twice: on the way in, and on the way back in the opposite order. The root
    // stays gathered over its forward.
    const std::vector<std::string> expected{"(root)",   "blocks.0", "blocks.1", "blocks.2",
                                            "blocks.2", "blocks.1", "blocks.0"};
    check_equal(of_name(events, "all_gather"), expected, "gathers that move bytes");
    const std::vector<std::string> ahead{"blocks.0", "blocks.1", "blocks.2",
                                         "blocks.2", "blocks.1", "blocks.0"};
    check_equal(of_name(events, "gather ahead"), ahead, "gathers begun ahead of use");
    for (int block = 0; block < 2; ++block) {
      const std::string next = concat("blocks.", block + 1);
      const std::string mine = concat("blocks.", block);
      const auto& forward = nth(events, "unit forward", mine, 0);
      const auto& gather = nth(events, "gather ahead", next, 0);
      check(gather.begin_ns <= forward.begin_ns, next + " is asked for before " + mine + " runs");
      check(gather.end_ns >= forward.end_ns, next + " is taken after " + mine);
      check(gather.bytes > 0, "a gather has the bytes of its unit");
      const auto& backward = nth(events, "unit backward", next, 0);
      const auto& back = nth(events, "gather ahead", mine, 1);
      check(back.begin_ns < backward.end_ns, mine + " is asked for while " + next + " runs");
    }
  });
}

TEST_CASE("the trace shows forward and backward of every unit") {
  const bool shared = GENERATE(true, false);
  ranks(2, [shared](Rank& rank) {
    const auto events =
        traced_step(rank, {.wrap = wrap_units_of<TinyBlock>(), .shared_gather = shared});
    const std::vector<std::string> forwards{"(root)", "blocks.0", "blocks.1", "blocks.2"};
    check_equal(of_name(events, "unit forward"), forwards, "forwards");
    const std::vector<std::string> backwards{"(root)", "blocks.2", "blocks.1", "blocks.0"};
    check_equal(of_name(events, "unit backward"), backwards, "backwards");
    const auto& root = nth(events, "unit forward", "(root)", 0);
    const auto& whole = nth(events, "backward", "", 0);
    for (int block = 0; block < 3; ++block) {
      const std::string name = concat("blocks.", block);
      const auto& forward = nth(events, "unit forward", name, 0);
      check(root.begin_ns <= forward.begin_ns && forward.end_ns <= root.end_ns,
            "a unit's forward lies in the root's");
      const auto& backward = nth(events, "unit backward", name, 0);
      check(whole.begin_ns <= backward.begin_ns && backward.begin_ns < backward.end_ns,
            "a unit's backward lies in the model's");
    }
    // A shared gather moves nothing, so nothing is asked for ahead.
    check_equal(of_name(events, "gather ahead").empty(), shared, "ahead");
  });
}

}  // namespace convoy::test
