// Whether and to which dtype torch's autocast casts, device by device.
#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <vector>

namespace convoy::recompute {

/// This thread's autocast state for some devices at one moment.
class AutocastState {
 public:
  static AutocastState of(const std::vector<at::Device>& devices);
  /// The present state of the same devices.
  AutocastState now() const;
  void restore() const;

 private:
  struct Entry {
    at::DeviceType device;
    bool enabled;
    at::ScalarType dtype;
  };
  std::vector<Entry> entries_;
  bool caches_ = true;
};

/// Note [The cache of autocast]
/// Within an outermost autocast scope torch keeps each parameter's cast. One made without a graph,
/// in a segment's forward, would be found again by code that needs one, and the parameter would
/// silently get no gradient. So forward does not use the cache (the casts have the same bits), and
/// the recomputation, which has a graph, does, as the plain call would: casts that are used twice
/// are then added in the same dtype.

/// While it lives this thread's autocast uses no cache.
class WithoutAutocastCache {
 public:
  WithoutAutocastCache();
  ~WithoutAutocastCache();
  WithoutAutocastCache(const WithoutAutocastCache&) = delete;
  WithoutAutocastCache& operator=(const WithoutAutocastCache&) = delete;

 private:
  bool before_;
};

/// An autocast scope in `state`.
class AutocastScope {
 public:
  explicit AutocastScope(const AutocastState& state);
  ~AutocastScope();
  AutocastScope(const AutocastScope&) = delete;
  AutocastScope& operator=(const AutocastScope&) = delete;

 private:
  AutocastState before_;
};

}  // namespace convoy::recompute
