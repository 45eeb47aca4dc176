// Checks of the tensors that callers hand to collective operations; errors name operation and rank.
#pragma once

#include "convoy/comm/types.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace convoy {

/// Who asks, for error texts.
struct CallSite {
  OpKind kind;
  int rank;
  const std::string& tag;
};

/// "all_reduce 'bucket 3' on rank 1".
std::string describe(const CallSite& site);

/// A dense CPU tensor. Error: kInvalidArgument saying what it is instead.
void require_dense(const CallSite& site, const at::Tensor& tensor, const char* name);
/// A tensor whose elements have a place of their own, so that it can be written.
void require_writable(const CallSite& site, const at::Tensor& tensor, const char* name);
/// A type that `op` is defined for (docs/numerics.md).
void require_reducible(const CallSite& site, at::ScalarType dtype, ReduceOp op);
void require_same_dtype(const CallSite& site, const at::Tensor& output, const at::Tensor& input);
/// The two may share memory only where `allowed_offset` bytes into `outer` lies all of `inner`.
void require_no_overlap(const CallSite& site, const at::Tensor& inner, const at::Tensor& outer,
                        std::int64_t allowed_offset);

/// True if the elements lie in memory in order, as they are: the backend can use them in place.
bool is_plain(const at::Tensor& tensor);
/// The tensor itself when it is plain, else a plain copy of its values.
at::Tensor to_plain(const at::Tensor& tensor);

}  // namespace convoy
