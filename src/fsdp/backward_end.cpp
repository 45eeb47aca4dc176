// The end of a backward: delivers what is left, and settles what the ranks must agree on.
#include "backward_pass.h"
#include "convoy/base/check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <utility>

namespace convoy::fsdp {
namespace {

/// Each unit behind all those inside it, and else in the order given.
std::vector<std::size_t> inner_first(const std::vector<ParamGroup>& groups,
                                     const std::vector<std::size_t>& units) {
  std::vector<std::size_t> sorted;
  for (const std::size_t unit : units) {
    const auto outer = std::find_if(sorted.begin(), sorted.end(), [&](std::size_t other) {
      return is_around(groups, main_part(groups, other), unit);
    });
    sorted.insert(outer, unit);
  }
  return sorted;
}

}  // namespace

bool BackwardPass::finish(bool learn_order) {
  const at::NoGradGuard no_grad;
  while (!route_.empty()) come_to(route_.front());
  if (kind_ == Kind::kSynchronised) {
    finish_synchronised(learn_order);
    return true;
  }
  setup_.gatherer.reshard_all();
  if (kind_ == Kind::kLocal) {
    for (ParamGroup& group : setup_.groups) group.gradients().set_placeholders();
  }
  return false;
}

void BackwardPass::finish_synchronised(bool learn_order) {
  while (next_ < setup_.order.size()) launch(setup_.order[next_++]);
  while (!flights_.empty()) finish_oldest();
  setup_.gatherer.reshard_all();
  std::vector<bool> late;
  const auto used = agree(late);
  deliver_late(late);
  for (std::size_t u = 0; u < used.size(); ++u) {
    if (progress_[u].trainable > 0) setup_.groups[u].gradients().put_on_leaves(used[u]);
  }
  setup_.gatherer.leave(/*all_have_left=*/true);
  if (learn_order) learn();
}

// Note [The end of a backward]
// One small reduction carries what the ranks must agree on: a write outside of the window, units
// with a second round, and which parameters any rank has used (a gradient is defined on all ranks
// if any of them used the parameter, else on none: optimizers skip undefined gradients and decay
// zero ones). As nobody gets its result before all have joined, it is also the meeting that opens
// the write window. Layout: [rank * leaves + leaf + 1 of a written parameter][late by unit][used].
std::vector<std::vector<bool>> BackwardPass::agree(std::vector<bool>& late) {
  auto& groups = setup_.groups;
  auto* flags = setup_.flags.mutable_data_ptr<std::int64_t>();
  const auto leaves_begin = 1 + static_cast<std::int64_t>(groups.size());
  const std::int64_t leaf_count = setup_.flags.numel() - leaves_begin;
  std::vector<const std::string*> names;
  std::int64_t at = leaves_begin;
  flags[0] = 0;
  for (std::size_t u = 0; u < groups.size(); ++u) {
    const auto written = setup_.gatherer.written(u);
    flags[1 + u] = groups[u].gradients().has_late() ? 1 : 0;
    for (std::size_t i = 0; i < groups[u].param().leaves().size(); ++i) {
      const std::string& name = groups[u].param().leaves()[i].name;
      if (written && *written == name) {
        flags[0] = setup_.comm.rank() * leaf_count + static_cast<std::int64_t>(names.size()) + 1;
      }
      names.push_back(&name);
      flags[at++] = groups[u].gradients().used(i) ? 1 : 0;
    }
  }
  setup_.comm.all_reduce(setup_.flags, ReduceOp::kMax, {.tag = "FSDP: end of backward"})->wait();
  if (flags[0] > 0) {
    all_have_failed_ = true;
    // All have met, so nobody reads any more: what was written counts, and everybody may write.
    setup_.gatherer.leave(/*all_have_left=*/true);
    const auto rank = static_cast<int>((flags[0] - 1) / leaf_count);
    throw Error(ErrorKind::kMisuse,
                concat("FSDP: rank ", rank, " wrote to parameter '",
                       *names[static_cast<std::size_t>((flags[0] - 1) % leaf_count)],
                       "' while other ranks may read it: between forward and the end of backward, "
                       "or after an evaluation. Step the optimizer right after backward, or write "
                       "inside fsdp.edit()"),
                rank);
  }
  std::vector<std::vector<bool>> used(groups.size());
  at = leaves_begin;
  for (std::size_t u = 0; u < groups.size(); ++u) {
    late.push_back(flags[1 + u] != 0);
    for (std::size_t i = 0; i < groups[u].param().leaves().size(); ++i) {
      used[u].push_back(flags[at++] != 0);
    }
  }
  return used;
}

void BackwardPass::deliver_late(const std::vector<bool>& late) {
  for (std::size_t u = 0; u < late.size(); ++u) {
    if (!late[u]) continue;
    UnitGradients& gradients = setup_.groups[u].gradients();
    gradients.finish_reduce(gradients.begin_late_reduce(setup_.comm));
  }
}

void BackwardPass::learn() {
  for (const std::size_t unit : setup_.order) {
    if (!progress_[unit].listed) completed_.push_back(unit);
  }
  if (!setup_.gatherer.options().shared) completed_ = inner_first(setup_.groups, completed_);
  at::Tensor order = at::empty({static_cast<std::int64_t>(completed_.size())}, at::kLong);
  auto* values = order.mutable_data_ptr<std::int64_t>();
  std::copy(completed_.begin(), completed_.end(), values);
  setup_.comm.broadcast(order, 0, {.tag = "FSDP: order of units"})->wait();
  std::copy(values, values + order.numel(), setup_.order.begin());
}

void BackwardPass::abandon() noexcept {
  flights_.clear();
  for (ParamGroup& group : setup_.groups) group.gradients().abandon();
  setup_.gatherer.reset();
}

}  // namespace convoy::fsdp
