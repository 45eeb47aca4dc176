// Whether and to which dtype torch's autocast casts, device by device.
#include "recompute/autocast_state.h"

#include <ATen/autocast_mode.h>

namespace convoy::recompute {

AutocastState AutocastState::of(const std::vector<at::Device>& devices) {
  AutocastState state;
  state.caches_ = at::autocast::is_autocast_cache_enabled();
  for (const at::Device& device : devices) {
    state.entries_.push_back({device.type(), at::autocast::is_autocast_enabled(device.type()),
                              at::autocast::get_autocast_dtype(device.type())});
  }
  return state;
}

AutocastState AutocastState::now() const {
  std::vector<at::Device> devices;
  for (const Entry& entry : entries_) devices.emplace_back(entry.device);
  return of(devices);
}

void AutocastState::restore() const {
  at::autocast::set_autocast_cache_enabled(caches_);
  for (const Entry& entry : entries_) {
    at::autocast::set_autocast_enabled(entry.device, entry.enabled);
    at::autocast::set_autocast_dtype(entry.device, entry.dtype);
  }
}

WithoutAutocastCache::WithoutAutocastCache() : before_(at::autocast::is_autocast_cache_enabled()) {
  at::autocast::set_autocast_cache_enabled(false);
}

WithoutAutocastCache::~WithoutAutocastCache() { at::autocast::set_autocast_cache_enabled(before_); }

AutocastScope::AutocastScope(const AutocastState& state) : before_(state.now()) {
  at::autocast::increment_nesting();
  state.restore();
}

AutocastScope::~AutocastScope() {
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  before_.restore();
}

}  // namespace convoy::recompute
