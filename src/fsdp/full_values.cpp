// Gathers into buffers, and copies back from them.
#include "full_values.h"

#include <ATen/ATen.h>

namespace convoy::fsdp {

FullValues::FullValues(std::vector<ParamGroup>& groups, Communicator& comm,
                       const std::vector<std::size_t>& units, bool shows)
    : groups_(groups), comm_(comm), shown_(shows) {
  const at::NoGradGuard no_grad;
  for (const std::size_t unit : units) {
    for_each_part(groups_, unit, [&](std::size_t part) {
      const ParamGroup& group = groups_[part];
      at::Tensor values =
          at::empty({group.param().layout().total_numel()}, group.storage().shard().options());
      comm_.all_gather(values, group.storage().shard(), {.tag = "full values of " + group.name()})
          ->wait();
      if (!shows) values.reset();
      buffers_.push_back({part, std::move(values)});
    });
  }
  // Only now, so that a failure on the way leaves every leaf as it was.
  if (!shows) return;
  for (const Buffer& buffer : buffers_) groups_[buffer.group].param().show_copy(buffer.values);
}

FullValues::~FullValues() { hide(); }

void FullValues::hide() noexcept {
  if (!std::exchange(shown_, false)) return;
  for (const Buffer& buffer : buffers_) {
    ParamGroup& group = groups_[buffer.group];
    group.param().show(FlatParam::Shows::kShard);
    group.tripwire().rearm(group.param());  // versions have risen with writes to the copy
  }
}

void FullValues::write_own() {
  const at::NoGradGuard no_grad;
  for (const Buffer& buffer : buffers_) {
    at::Tensor shard = groups_[buffer.group].storage().shard();
    shard.copy_(buffer.values.narrow(0, comm_.rank() * shard.numel(), shard.numel()));
  }
}

void FullValues::write_first() {
  for (const Buffer& buffer : buffers_) {
    ParamGroup& group = groups_[buffer.group];
    group.storage().scatter_from_first(buffer.values, group.name());
  }
}

}  // namespace convoy::fsdp
