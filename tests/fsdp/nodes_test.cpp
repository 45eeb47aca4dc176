// The nodes that a unit's run remembers are those that live.
#include "fsdp/backward_nodes.h"
#include "harness.h"
#include "modules.h"
#include "support/catch.h"

#include <ATen/SequenceNumber.h>

#include <algorithm>

namespace convoy {
namespace {

using namespace test;

std::int64_t living(const fsdp::UnitRun& run) {
  return std::count_if(run.nodes.begin(), run.nodes.end(),
                       [](const auto* node) { return node != nullptr; });
}

}  // namespace

TEST_CASE("a node that dies is forgotten by the run that made it") {
  const auto x = torch::ones({4}).requires_grad_(true);
  const auto run = std::make_shared<fsdp::UnitRun>();
  int reached = 0;
  run->on_node = [&](fsdp::UnitRun&, const fsdp::Node&) { ++reached; };
  const auto first = at::sequence_number::peek();
  auto kept = x.sin();
  auto dropped = x.cos();
  for (int i = 0; i < 50; ++i) dropped = dropped.cos();
  fsdp::hook_run(run, fsdp::walk_graph({kept, dropped}, first).nodes, nullptr);
  check_equal(living(*run), std::int64_t{52}, "nodes");
  dropped.reset();
  check_equal(living(*run), std::int64_t{1}, "nodes that live");
  // New graphs take the memory of old ones: none of their nodes may pass for one of the run's.
  for (int round = 0; round < 20; ++round) {
    auto y = x.exp();
    for (int i = 0; i < 50; ++i) y = y.exp();
    const auto part = fsdp::walk_graph({y}, first);
    for (const auto* node : part.nodes) {
      check(std::find(run->nodes.begin(), run->nodes.end(), node) == run->nodes.end(), "foreign");
    }
  }
  kept.sum().backward();
  check_equal(reached, 1, "nodes reached");
  kept.reset();
  check_equal(living(*run), std::int64_t{0}, "nodes that live");
}

}  // namespace convoy
