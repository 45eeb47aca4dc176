// Puts results back into callers' tensors that did not lie in memory in order.
#include "comm/write_backs.h"

#include <ATen/core/grad_mode.h>

namespace convoy {

void write_back(std::vector<WriteBack>& write_backs) {
  const at::NoGradGuard no_grad;
  for (const auto& [target, source] : write_backs) target.detach().copy_(source);
  write_backs.clear();
}

}  // namespace convoy
