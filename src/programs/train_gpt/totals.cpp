// Sums, and the exchange of them.
#include "programs/train_gpt/totals.h"

#include "convoy/base/hash.h"

#include <algorithm>
#include <array>
#include <cstdio>

namespace convoy::train_gpt {
namespace {

constexpr std::array kOperations{OpKind::kAllReduce, OpKind::kReduceScatter, OpKind::kAllGather,
                                 OpKind::kBroadcast, OpKind::kBarrier,       OpKind::kAllocate};
constexpr std::int64_t kNumbersPerOperation = 5;
constexpr std::int64_t kUnknown = -1;  // On the way between ranks.

/// The numbers of a report in a fixed order.
std::array<std::int64_t, 10> to_numbers(const profile::MemoryReport& report) {
  const auto& process = report.process;
  return {process.rss.value_or(kUnknown),
          process.rss_peak.value_or(kUnknown),
          process.files.value_or(kUnknown),
          process.shared.value_or(kUnknown),
          process.pss.value_or(kUnknown),
          report.parameters,
          report.gradients,
          report.optimizer,
          report.buffers,
          report.activations_peak};
}

profile::MemoryReport from_numbers(const std::int64_t* numbers) {
  const auto known = [numbers](int index) -> std::optional<std::int64_t> {
    if (numbers[index] == kUnknown) return std::nullopt;
    return numbers[index];
  };
  return {.process = {known(0), known(1), known(2), known(3), known(4)},
          .parameters = numbers[5],
          .gradients = numbers[6],
          .optimizer = numbers[7],
          .buffers = numbers[8],
          .activations_peak = numbers[9]};
}

}  // namespace

void Totals::add(const StepResult& step) {
  ++steps_;
  for (const auto& [kind, stats] : step.comm) {
    OpStats& sum = comm_[kind];
    sum.calls += stats.calls;
    sum.payload_bytes += stats.payload_bytes;
    sum.copied_bytes += stats.copied_bytes;
    sum.wire_bytes += stats.wire_bytes;
    sum.wait_s += stats.wait_s;
  }
  gradient_bytes_ = std::max(gradient_bytes_, step.gradient_bytes);
  activation_bytes_ = std::max(activation_bytes_, step.activation_bytes);
}

profile::MemoryReport Totals::memory(Strategy& strategy,
                                     const torch::optim::Optimizer& optimizer) const {
  std::vector<at::Tensor> leaves;
  for (const ShardSpan& span : strategy.held_spans()) leaves.push_back(span.leaf);
  return {.process = profile::read_process_memory(),
          .parameters = profile::tensor_bytes(leaves) + strategy.cast_parameter_bytes(),
          .gradients = gradient_bytes_,
          .optimizer = profile::optimizer_bytes(optimizer),
          .buffers = profile::tensor_bytes(strategy.model()->buffers()),
          .activations_peak = activation_bytes_};
}

std::vector<profile::MemoryReport> gather_memory(const profile::MemoryReport& mine,
                                                 Communicator& comm) {
  const auto numbers = to_numbers(mine);
  const auto width = static_cast<std::int64_t>(numbers.size());
  auto all = at::empty({comm.size(), width}, at::kLong);
  comm.all_gather(all, at::tensor(numbers, at::kLong), {.tag = "memory"})->wait();
  std::vector<profile::MemoryReport> reports;
  for (int rank = 0; rank < comm.size(); ++rank) {
    reports.push_back(from_numbers(all.data_ptr<std::int64_t>() + rank * width));
  }
  return reports;
}

std::vector<MeanOpStats> mean_comm(const Totals& totals, Communicator& comm) {
  auto sums = at::zeros({std::int64_t{kOperations.size()}, kNumbersPerOperation}, at::kDouble);
  auto rows = sums.accessor<double, 2>();
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    const auto found = totals.comm().find(kOperations[i]);
    if (found == totals.comm().end()) continue;
    const OpStats& stats = found->second;
    auto row = rows[static_cast<std::int64_t>(i)];
    row[0] = static_cast<double>(stats.calls);
    row[1] = static_cast<double>(stats.payload_bytes);
    row[2] = static_cast<double>(stats.copied_bytes);
    row[3] = static_cast<double>(stats.wire_bytes);
    row[4] = stats.wait_s;
  }
  comm.all_reduce(sums, ReduceOp::kSum, {.tag = "counters"})->wait();
  sums /= static_cast<double>(comm.size()) *
          static_cast<double>(std::max<std::int64_t>(1, totals.steps()));
  std::vector<MeanOpStats> means;
  for (std::size_t i = 0; i < kOperations.size(); ++i) {
    const auto row = rows[static_cast<std::int64_t>(i)];
    if (row[0] > 0) means.push_back({kOperations[i], row[0], row[1], row[2], row[3], row[4]});
  }
  return means;
}

std::string parameters_xxh3(Strategy& strategy) {
  Hasher64 hash;
  bool visited = false;
  strategy.for_each_full_parameter([&](std::string_view name, const at::Tensor& value) {
    visited = true;
    const at::Tensor bytes = value.to(at::kFloat).contiguous();
    hash.update(name).update(bytes.const_data_ptr(), bytes.nbytes());
  });
  if (!visited) return {};
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx",
                static_cast<unsigned long long>(hash.digest()));
  return text.data();
}

}  // namespace convoy::train_gpt
