// What functions that take "a model" accept: a module, its holder, or a wrapper around it.
#pragma once

#include "convoy/comm/communicator.h"

namespace convoy::detail {

template <class Model>
concept PlainModel = requires(const Model& model) {
  model.parameters();
};
/// A TORCH_MODULE holder or a std::shared_ptr to a module.
template <class Model>
concept ModelHolder = requires(const Model& model) {
  model->parameters();
};
/// DistributedDataParallel and FullyShardedDataParallel.
template <class Model>
concept WrappedModel = requires(const Model& model) {
  model.shard_spans();
  model.communicator();
};
template <class Model>
concept AnyModel = PlainModel<Model> || ModelHolder<Model> || WrappedModel<Model>;

inline Communicator* address_of(Communicator& comm) { return &comm; }
inline Communicator* address_of(const CommunicatorPtr& comm) { return comm.get(); }

}  // namespace convoy::detail
