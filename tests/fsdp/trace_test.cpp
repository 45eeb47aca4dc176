// What the trace shows of units: forwards, backwards and gathers, in the order they happen.
#include "fsdp/stack_runs.h"
#include "support/catch.h"

#include <algorithm>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

/// The spans of one rank's training step, by begin.
template <typename Holder>
std::vector<trace::Event> traced_step(
    Rank& rank, Holder model, const fsdp::Options& options,
    const std::function<at::Tensor(Holder& model, int rank, int step)>& loss) {
  const auto sink = std::make_shared<trace::MemorySink>();
  const auto comm =
      make_communicator(rank.job(), {.timeout = 60s, .name = "traced", .trace = sink});
  FullyShardedDataParallel fsdp(model, comm, options);
  const auto train = [&](int step) {
    loss(model, rank.rank(), step).backward();
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

std::vector<trace::Event> traced_step(Rank& rank, const fsdp::Options& options) {
  return traced_step<TinyGpt>(rank, TinyGpt(), options, [](TinyGpt& model, int of_rank, int step) {
    const TinyBatch batch = tiny_batch(of_rank, step);
    return tiny_loss(model(batch.tokens), batch.targets);
  });
}

/// A unit around a unit, with parameters before it.
struct TracedPairImpl : torch::nn::Module {
  TracedPairImpl()
      : before(register_module("before", torch::nn::Linear(6, 6))),
        inner(register_module("inner", Layer())) {}
  torch::Tensor forward(torch::Tensor x) { return inner(before(x)); }
  torch::nn::Linear before;
  Layer inner;
};
using TracedPair = Unit<TracedPairImpl>;

struct TracedPairsImpl : torch::nn::Module {
  TracedPairsImpl()
      : a(register_module("a", TracedPair())),
        b(register_module("b", TracedPair())),
        head(register_module("head", torch::nn::Linear(6, 4))) {}
  torch::Tensor forward(torch::Tensor x) { return head(b(a(x))); }
  TracedPair a, b;
  torch::nn::Linear head;
};
using TracedPairs = Unit<TracedPairsImpl>;

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

TEST_CASE("units around units are reduced right behind those inside them") {
  const bool shared = GENERATE(true, false);
  ranks(2, [shared](Rank& rank) {
    const auto events =
        traced_step<TracedPairs>(rank, TracedPairs(), {.shared_gather = shared},
                                 [](TracedPairs& model, int of_rank, int step) {
                                   return model(stack_input(of_rank, step)).square().mean();
                                 });
    auto reductions = of_name(events, "reduce_scatter");
    std::erase(reductions, "(root)");
    const std::vector<std::string> expected{"b.inner", "b", "a.inner", "a"};
    check_equal(reductions, expected, "reductions");
  });
}

TEST_CASE("a unit that runs twice and is kept is not gathered after the last gradient") {
  ranks(2, [](Rank& rank) {
    const auto events = traced_step<Stack>(
        rank, make_seeded_stack(), {.reshard_after_forward = false, .shared_gather = false},
        [](Stack& model, int of_rank, int step) {
          model->body = [](StackImpl& self, torch::Tensor x) {
            return self.layers[0](self.layers[1](self.layers[0](x)));
          };
          return model(stack_input(of_rank, step)).square().mean();
        });
    const auto& whole = nth(events, "backward", "", 0);
    for (const auto& event : events) {
      const bool late = event.name == "all_gather" && event.begin_ns > whole.end_ns;
      check(!late, concat("a gather of ", event.detail, " at the end of backward"));
    }
  });
}

}  // namespace convoy::test
