// The gradients of one unit: from what arrives during backward to shard gradients on the leaves.
#pragma once

#include "convoy/comm/communicator.h"
#include "flat_param.h"
#include "grad_buffers.h"

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace convoy::fsdp {

/// A reduction that has been started. Moved once into finish_reduce.
struct ReduceInFlight {
  WorkPtr work;
  GradBufferLease input;  ///< Full gradients of this rank; must stay until the work is done.
  at::Tensor output;      ///< This rank's slice of the mean, in the input's dtype.
  bool adds = false;      ///< A second round: its output is added to the first one's.
};

/// Note [Where gradients are]
/// A gradient that arrives is copied once, into its place in a full buffer on loan from the pool,
/// and never touches the leaf: the hook before AccumulateGrad takes it. What lies in this rank's
/// own slice, where no other rank reads, is not even copied (see leaves_own_gradients): the
/// reduction reads it where it is, and the whole gradient lives until then. Full buffers are in the
/// pool's dtype, the one that gradients are reduced in; gradients on the leaves are in the leaves'.
/// When the unit is complete the buffer is reduced into this rank's slice. Gradients of a backward
/// under no_sync stay in a full buffer of the unit's own (`local_`), and the leaves carry
/// placeholders: a gradient that cannot be stepped with (its shape fits no leaf) and whose loss or
/// zeroing tells that the user dropped it. Thread rule: the thread that runs backward.
class UnitGradients {
 public:
  /// `dtype` is the leaves'.
  UnitGradients(const FlatParam& param, at::ScalarType dtype, std::shared_ptr<GradBufferPool> pool,
                std::string name);

  /// Starts a backward: forgets what was dropped by zero_grad since the last one.
  void begin();
  bool has_buffer() const noexcept { return static_cast<bool>(buffer_); }
  /// Gets a buffer for this backward, from outside the pool if `plain`. False if none is free.
  bool take_buffer(bool plain);
  /// Takes a gradient of full shape for leaf `index` into the buffer.
  void add(std::size_t index, const at::Tensor& gradient);
  /// As add, under no_sync.
  void add_local(std::size_t index, const at::Tensor& gradient);
  /// As add, after this backward's reduction has been started: kept for a second round.
  void add_late(std::size_t index, const at::Tensor& gradient);

  /// Starts the reduction of everything that arrived; what did not counts as zero. Collective.
  ReduceInFlight begin_reduce(Communicator& comm, std::string tag);
  /// The second round: reduces what came late; zeros where nothing did. Collective.
  ReduceInFlight begin_late_reduce(Communicator& comm);
  /// Waits, gives the input back and keeps the output for put_on_leaves.
  void finish_reduce(ReduceInFlight flight);

  bool used(std::size_t index) const { return used_[index] || !late_.empty_at(index); }
  bool has_late() const noexcept { return late_.buffer.defined(); }
  /// Puts the reduced slices on the leaves, or adds them to the gradients there, where `used`.
  void put_on_leaves(const std::vector<bool>& used);
  /// Ends a backward under no_sync: stashes gradients of the leaves and sets placeholders.
  void set_placeholders();
  /// Drops everything of a backward that failed.
  void abandon() noexcept;

  /// Bytes of full-size gradients held outside of the pool: by this unit, or for its reduction.
  std::int64_t local_bytes() const noexcept;

 private:
  /// A full-size buffer with a note of which leaves have a value in it.
  struct Filled {
    at::Tensor buffer;
    std::vector<bool> has;
    bool empty_at(std::size_t index) const { return has.empty() || !has[index]; }
    void clear() noexcept {
      buffer.reset();
      has.clear();
    }
  };

  at::Tensor place(const at::Tensor& buffer, std::size_t index) const;
  /// Copies a first gradient into the buffer, but for what may stay where it is.
  void take(std::size_t index, const at::Tensor& gradient);
  /// Copies what has stayed, because more is to be added to it.
  void bring(std::size_t index);
  void add_to(Filled& filled, std::size_t index, const at::Tensor& gradient);
  /// Where this rank's slice of the mean goes, in the leaves' dtype.
  at::Tensor output_buffer();
  /// Zeroes the places of trainable leaves that have no value, so that they count as zero.
  void zero_missing(const at::Tensor& buffer, const std::vector<bool>& has) const;

  const FlatParam& param_;
  at::ScalarType dtype_;
  std::shared_ptr<GradBufferPool> pool_;
  std::string name_;
  GradBufferLease buffer_;
  std::vector<bool> in_buffer_;   ///< Leaf has a value in buffer_.
  std::vector<OwnPiece> stayed_;  ///< By leaf: what is read from the gradient itself.
  std::vector<bool> used_;        ///< Leaf got a gradient in this backward or under no_sync before.
  std::int64_t reducing_bytes_ = 0;  ///< Of gradients that the reduction on its way reads in place.
  Filled local_;                     ///< Accumulated under no_sync.
  Filled late_;
  at::Tensor reduced_;  ///< Output of this backward's reduction.
  std::vector<at::Tensor> placeholders_;
  std::vector<at::Tensor> stashed_;  ///< Shard gradients that were on the leaves before no_sync.
  at::Tensor kept_;                  ///< Slice reused from step to step while nobody else holds it.
  std::vector<at::Tensor> kept_views_;
};

}  // namespace convoy::fsdp
