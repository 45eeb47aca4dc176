// Decides when units are gathered and dropped: ahead of use, once, and never more than needed.
#pragma once

#include "convoy/comm/communicator.h"
#include "forward_order.h"
#include "param_group.h"
#include "write_window.h"

#include <functional>
#include <optional>
#include <vector>

namespace convoy::fsdp {

struct GatherOptions {
  bool shared = true;  ///< One region for all ranks: a gather moves nothing.
  /// By unit: full parameters are given up after forward. The root keeps its own until backward.
  std::vector<bool> reshards;
};

/// Thread rule: the thread that runs forward or backward. All ranks make the same calls in the same
/// order when gathers are private, because each is a collective then.
class Gatherer {
 public:
  Gatherer(std::vector<ParamGroup>& groups, Communicator& comm, GatherOptions options);

  WriteWindow& window() noexcept { return window_; }
  ForwardOrder& order() noexcept { return order_; }
  const ForwardOrder& order() const noexcept { return order_; }
  const GatherOptions& options() const noexcept { return options_; }

  /// Throws kFailed where the communicator has failed.
  void require_working() const;
  /// The outermost forward begins, or has ended in whatever way: nothing gathered ahead outlives
  /// it. Waits, so that what is begun ahead stays a collective of all ranks. begin_model throws as
  /// require_working does.
  void begin_model();
  void end_model() { abandon_ahead(); }
  /// Makes a unit full for its forward and starts on the unit that is likely to be next, unless
  /// this one is run `alone`: then whatever follows is a forward of its own.
  void for_forward(std::size_t unit, bool alone);
  using UnitTest = std::function<bool(std::size_t unit)>;
  /// Makes a unit full inside a backward; `wanted` says whether a unit is worth gathering ahead,
  /// `done` whether one that is kept after forward has got all its gradients, if it gets any.
  void for_backward(std::size_t unit, const UnitTest& wanted, const UnitTest& done);
  /// Makes a unit full as forward sees it and nothing else.
  void for_use(std::size_t unit) { gather(unit, /*reuse=*/false); }
  /// Makes a unit full in the parameters' own dtype and nothing else: for reading parameters.
  void for_reading(std::size_t unit);
  /// After forward. `graph` says that a backward may follow.
  void after_forward(std::size_t unit, bool graph);
  void reshard(std::size_t unit);
  /// Whether the unit gives its full parameters up after its next forwards.
  void set_reshards(std::size_t unit, bool reshards) { options_.reshards[unit] = reshards; }
  /// Everything back to its shard, buffers dropped, and what was gathered ahead abandoned.
  void reshard_all();
  /// As reshard_all after a failure: waits for nothing, throws nothing.
  void reset() noexcept;

  /// Closes the write window if it is open: waits until every rank has stepped.
  void settle();
  /// As settle, but says so for good and waits for nobody (see WriteWindow). Never throws.
  void settle_for_good() noexcept;
  /// Opens it again.
  void leave(bool all_have_left);
  /// The name of a parameter of `unit` written to while the window was closed.
  std::optional<std::string> written(std::size_t unit) const;

 private:
  /// Of a unit and of its frozen part, if it has one.
  struct Flights {
    GatherInFlight unit;
    GatherInFlight frozen_part;
  };
  struct Ahead {
    std::size_t unit;
    Flights flights;
    std::int64_t begin_ns;
  };

  void gather(std::size_t unit, bool reuse, Values values = Values::kCompute);
  void publish();
  Flights begin(std::size_t unit, bool reuse, Values values);
  void finish(std::size_t unit, Flights flights);
  void reset(std::size_t unit) noexcept;
  bool keeps_all() const;
  /// Traces a gather from its begin to the unit at hand.
  void record(std::size_t unit, const char* name, std::int64_t begin_ns) const;
  void gather_ahead(std::optional<std::size_t> unit, bool reuse);
  void abandon_ahead();
  bool has_room_ahead() const;
  void require_unwritten(std::size_t unit);

  std::vector<ParamGroup>& groups_;
  Communicator& comm_;
  GatherOptions options_;
  WriteWindow window_;
  ForwardOrder order_;
  std::optional<Ahead> ahead_;
};

}  // namespace convoy::fsdp
