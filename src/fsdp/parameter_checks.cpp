// What can be seen from one tensor, and from the addresses of all.
#include "parameter_checks.h"

#include "convoy/base/check.h"

#include <algorithm>

namespace convoy::fsdp {

void require_shardable(const NamedParameter& parameter, bool meta_allowed) {
  const auto& [name, tensor] = parameter;
  const auto dtype = tensor.scalar_type();
  CONVOY_REQUIRE(dtype == at::kFloat || dtype == at::kDouble, kInvalidArgument, "FSDP: '", name,
                 "' is ", c10::toString(dtype),
                 "; parameters must be float32 or float64 (to compute in bfloat16 or half keep the "
                 "model float32 and set mixed_precision.param_dtype)");
  const bool here = tensor.device().is_cpu() || (meta_allowed && tensor.is_meta());
  CONVOY_REQUIRE(here && tensor.layout() == at::kStrided, kInvalidArgument, "FSDP: '", name,
                 "' is not a dense CPU tensor");
  CONVOY_REQUIRE(tensor.is_leaf(), kInvalidArgument, "FSDP: '", name,
                 "' is the result of an operation, not a leaf");
  CONVOY_REQUIRE(!tensor.grad().defined(), kInvalidArgument, "FSDP: '", name,
                 "' has a gradient already; wrap the model before its first backward, or drop "
                 "gradients with model->zero_grad() first");
}

void require_no_overlap(const std::vector<NamedParameter>& parameters) {
  struct Range {
    const char* begin;
    const char* end;
    const std::string* name;
  };
  std::vector<Range> ranges;
  for (const auto& [name, tensor] : parameters) {
    if (tensor.numel() == 0 || tensor.is_meta()) continue;
    const auto* begin = static_cast<const char*>(tensor.const_data_ptr());
    std::int64_t last = 0;
    for (std::int64_t d = 0; d < tensor.dim(); ++d) last += (tensor.size(d) - 1) * tensor.stride(d);
    ranges.push_back({begin, begin + (last + 1) * tensor.element_size(), &name});
  }
  std::sort(ranges.begin(), ranges.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    CONVOY_REQUIRE(ranges[i].begin >= ranges[i - 1].end, kInvalidArgument, "FSDP: '",
                   *ranges[i - 1].name, "' and '", *ranges[i].name,
                   "' share memory but are two tensors; register one tensor twice to tie them");
  }
}

}  // namespace convoy::fsdp
