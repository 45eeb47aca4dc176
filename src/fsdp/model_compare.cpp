// Gathers every rank's description and looks for the first difference.
#include "model_compare.h"

#include "convoy/base/check.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>

namespace convoy::fsdp {
namespace {

std::vector<std::string> split_lines(const char* text, std::size_t length) {
  std::vector<std::string> lines;
  const std::string_view all(text, length);
  for (std::size_t at = 0; at < all.size();) {
    const std::size_t end = std::min(all.find('\n', at), all.size());
    lines.emplace_back(all.substr(at, end - at));
    at = end + 1;
  }
  return lines;
}

std::string line_or_nothing(const std::vector<std::string>& lines, std::size_t index) {
  return index < lines.size() ? lines[index] : "nothing more";
}

}  // namespace

std::vector<std::string> describe_for_comparison(const UnitPlan& plan,
                                                 const torch::nn::Module& model,
                                                 const Options& options) {
  std::vector<std::string> lines;
  lines.push_back(concat("options shared_gather=", options.shared_gather));
  for (const PlannedName& name : plan.names) {
    if (name.ignored()) {
      lines.push_back(concat("parameter '", name.name, "' ignored"));
      continue;
    }
    const PlannedUnit& unit = plan.units[name.unit];
    const at::Tensor& tensor = unit.parameters[name.parameter].tensor;
    lines.push_back(concat(
        "parameter '", name.name, "' ", tensor.sizes(), " ", c10::toString(tensor.scalar_type()),
        tensor.requires_grad() ? " trainable" : " frozen", " in unit ", unit.name));
  }
  lines.push_back(concat(plan.names.size(), " parameters in ", plan.units.size(), " units"));
  for (const PlannedUnit& unit : plan.units) {
    lines.push_back(concat("unit ", unit.name,
                           " reshard_after_forward=", options.reshard_after_forward(unit.key())));
  }
  for (const auto& buffer : model.named_buffers()) {
    lines.push_back(concat("buffer '", buffer.key(), "' ", buffer.value().sizes(), " ",
                           c10::toString(buffer.value().scalar_type())));
  }
  return lines;
}

void compare_over_ranks(Communicator& comm, const std::vector<std::string>& lines) {
  std::string text;
  for (const std::string& line : lines) text += line + "\n";
  const int world = comm.size();
  const at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  const at::Tensor lengths = at::empty({world}, at::kLong);
  comm.all_gather(lengths, length, {.tag = "FSDP: compare models"})->wait();
  const std::int64_t longest = lengths.max().item<std::int64_t>();
  at::Tensor mine = at::zeros({longest}, at::kByte);
  std::memcpy(mine.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = at::empty({longest * world}, at::kByte);
  comm.all_gather(all, mine, {.tag = "FSDP: compare models"})->wait();

  const auto lines_of = [&](int rank) {
    return split_lines(static_cast<const char*>(all.const_data_ptr()) + longest * rank,
                       static_cast<std::size_t>(lengths[rank].item<std::int64_t>()));
  };
  const std::vector<std::string> first = lines_of(0);
  for (int rank = 1; rank < world; ++rank) {
    const std::vector<std::string> other = lines_of(rank);
    for (std::size_t i = 0; i < std::max(first.size(), other.size()); ++i) {
      const std::string here = line_or_nothing(first, i), there = line_or_nothing(other, i);
      if (here == there) continue;
      throw Error(ErrorKind::kMismatch,
                  concat("FSDP: the ranks' models differ: rank 0 has ", here, ", rank ", rank,
                         " has ", there),
                  rank);
    }
  }
}

void broadcast_buffers(Communicator& comm, torch::nn::Module& model) {
  const at::NoGradGuard no_grad;
  for (const auto& buffer : model.named_buffers()) {
    comm.broadcast(buffer.value(), 0, {.tag = buffer.key()})->wait();
  }
}

}  // namespace convoy::fsdp
