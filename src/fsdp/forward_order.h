// Which unit runs after which: learnt from the last forward, used to gather ahead. Pure.
#pragma once

#include <cstddef>
#include <optional>
#include <vector>

namespace convoy::fsdp {

/// Before the first forward the order is that of registration.
class ForwardOrder {
 public:
  explicit ForwardOrder(std::size_t units) : next_(units), previous_(units) {
    for (std::size_t i = 0; i + 1 < units; ++i) link(i, i + 1);
  }

  /// A forward of the whole model begins: what ran last is no predecessor of what runs next.
  void begin_model() noexcept {
    last_.reset();
    ended_.clear();
  }
  void begin_unit(std::size_t unit) {
    if (last_ && *last_ != unit) link(*last_, unit);
    last_ = unit;
  }

  /// A unit's forward has ended, with a graph, and the unit trains.
  void end_unit(std::size_t unit) {
    if (ended_.empty() || ended_.back() != unit) ended_.push_back(unit);
  }
  /// The units of the last forward of the model for which end_unit was called, in that order: inner
  /// ones before those around them, so that a backward comes to them from the back.
  const std::vector<std::size_t>& ended() const noexcept { return ended_; }

  std::optional<std::size_t> after(std::size_t unit) const { return next_[unit]; }
  std::optional<std::size_t> before(std::size_t unit) const { return previous_[unit]; }
  /// The unit that began last: the first one that backward needs besides the root.
  std::optional<std::size_t> last() const { return last_; }

 private:
  void link(std::size_t from, std::size_t to) {
    next_[from] = to;
    previous_[to] = from;
  }

  std::vector<std::optional<std::size_t>> next_;
  std::vector<std::optional<std::size_t>> previous_;
  std::optional<std::size_t> last_;
  std::vector<std::size_t> ended_;
};

}  // namespace convoy::fsdp
