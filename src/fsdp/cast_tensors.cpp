// The one cast that all others are made of.
#include "convoy/fsdp/cast_tensors.h"

namespace convoy::fsdp {

at::Tensor cast_floating(const at::Tensor& tensor, at::ScalarType dtype) {
  if (!tensor.defined() || !tensor.is_floating_point() || tensor.scalar_type() == dtype) {
    return tensor;
  }
  return tensor.to(dtype);
}

}  // namespace convoy::fsdp
