// Text for people.
#include "convoy/flat/memory_plan.h"

#include <cstdio>

namespace convoy {

std::string to_string(const MemoryPlan& plan) {
  std::string text;
  const auto add = [&](const char* name, std::int64_t bytes) {
    if (bytes == 0) return;
    char part[96];
    std::snprintf(part, sizeof(part), "%s%s %.2f", text.empty() ? "" : ", ", name,
                  static_cast<double>(bytes) / (1024.0 * 1024.0));
    text += part;
  };
  add("parameters", plan.parameters);
  add("gradients", plan.gradients);
  add("optimizer", plan.optimizer);
  add("buffers", plan.buffers);
  add("full parameters", plan.full_parameters);
  add("cast parameters", plan.cast_parameters);
  add("gradient buffers", plan.gradient_buffers);
  add("together", plan.total());
  return text.empty() ? "nothing" : text + " MiB";
}

}  // namespace convoy
