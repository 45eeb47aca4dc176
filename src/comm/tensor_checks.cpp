// Checks of the tensors that callers hand to collective operations.
#include "comm/tensor_checks.h"

#include "convoy/base/check.h"

#include <ATen/MemoryOverlap.h>
#include <ATen/core/grad_mode.h>

namespace convoy {

std::string describe(const CallSite& site) {
  const std::string tag = site.tag.empty() ? std::string() : concat(" '", site.tag, "'");
  return concat(to_string(site.kind), tag, " on rank ", site.rank);
}

void require_dense(const CallSite& site, const at::Tensor& tensor, const char* name) {
  CONVOY_REQUIRE(tensor.defined(), kInvalidArgument, describe(site), ": ", name,
                 " is an undefined tensor");
  CONVOY_REQUIRE(tensor.device().is_cpu(), kInvalidArgument, describe(site), ": ", name,
                 " is on device ", tensor.device().str(), "; the host backend moves CPU tensors");
  CONVOY_REQUIRE(tensor.layout() == at::kStrided && !tensor.is_quantized(), kInvalidArgument,
                 describe(site), ": ", name,
                 " is sparse or quantized; only dense tensors can be moved");
}

void require_writable(const CallSite& site, const at::Tensor& tensor, const char* name) {
  CONVOY_REQUIRE(at::has_internal_overlap(tensor) != at::MemOverlap::Yes, kInvalidArgument,
                 describe(site), ": ", name,
                 " has elements that share memory (an expanded tensor?); pass a clone()");
}

void require_reducible(const CallSite& site, at::ScalarType dtype, ReduceOp op) {
  switch (dtype) {
    case at::kDouble:
    case at::kFloat:
    case at::kBFloat16:
    case at::kHalf: return;
    case at::kLong:
    case at::kInt:
    case at::kByte:
    case at::kBool:
      CONVOY_REQUIRE(op != ReduceOp::kAvg, kInvalidArgument, describe(site), ": avg of ",
                     c10::toString(dtype), " values; avg is for floating point types, use sum");
      return;
    default:
      throw Error(ErrorKind::kInvalidArgument,
                  concat(describe(site), ": cannot reduce type ", c10::toString(dtype),
                         "; possible are Double, Float, BFloat16, Half, Long, Int, Byte, Bool"));
  }
}

void require_same_dtype(const CallSite& site, const at::Tensor& output, const at::Tensor& input) {
  CONVOY_REQUIRE(output.scalar_type() == input.scalar_type(), kInvalidArgument, describe(site),
                 ": output has type ", c10::toString(output.scalar_type()), " and input ",
                 c10::toString(input.scalar_type()));
}

void require_no_overlap(const CallSite& site, const at::Tensor& inner, const at::Tensor& outer,
                        std::int64_t allowed_offset) {
  if (!is_plain(inner) || !is_plain(outer)) return;  // Copies are made of these.
  if (inner.numel() == 0 || outer.numel() == 0) return;
  const auto* inner_data = static_cast<const char*>(inner.const_data_ptr());
  const auto* outer_data = static_cast<const char*>(outer.const_data_ptr());
  const bool apart =
      inner_data + inner.nbytes() <= outer_data || outer_data + outer.nbytes() <= inner_data;
  CONVOY_REQUIRE(apart || inner_data == outer_data + allowed_offset, kInvalidArgument,
                 describe(site),
                 ": input and output overlap; allowed is only this rank's own part");
}

bool is_plain(const at::Tensor& tensor) {
  return tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

at::Tensor to_plain(const at::Tensor& tensor) {
  if (is_plain(tensor)) return tensor;
  const at::NoGradGuard no_grad;
  return tensor.detach().resolve_conj().resolve_neg().contiguous();
}

}  // namespace convoy
