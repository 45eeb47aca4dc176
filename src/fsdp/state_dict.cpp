// Streams full parameters unit by unit, and loads them the same way.
#include "convoy/fsdp/state_dict.h"

#include "sharded_model.h"

#include <ATen/ATen.h>

#include <cstring>
#include <set>

namespace convoy::fsdp {
namespace {

// The first thing wrong with `state` for this model, or nothing.
std::string first_problem(const ShardedModel& model, const torch::nn::Module& module,
                          const StateDict& state) {
  const auto check = [&](const std::string& name, c10::IntArrayRef sizes,
                         at::ScalarType dtype) -> std::string {
    const at::Tensor* value = state.find(name);
    if (value == nullptr || !value->defined()) return "'" + name + "' is missing";
    if (value->layout() != at::kStrided || value->is_meta()) {
      return concat("'", name, "' is a ", value->toString(), "; only dense tensors can be loaded");
    }
    if (value->sizes() != sizes) {
      return concat("'", name, "' has shape ", value->sizes(), ", the model has ", sizes);
    }
    const bool converts = at::isFloatingType(value->scalar_type()) && at::isFloatingType(dtype);
    if (value->scalar_type() != dtype && !converts) {
      return concat("'", name, "' is ", value->scalar_type(), ", the model has ", dtype);
    }
    return {};
  };
  std::size_t known = 0;
  for (const PlannedName& name : model.names()) {
    std::string problem;
    if (name.ignored()) {
      const at::Tensor& own = model.ignored()[name.parameter].tensor;
      problem = check(name.name, own.sizes(), own.scalar_type());
    } else {
      const auto& leaf = model.groups()[name.unit].param().leaves()[name.parameter];
      problem = check(name.name, leaf.full_sizes, leaf.tensor.scalar_type());
    }
    if (!problem.empty()) return problem;
    ++known;
  }
  const auto buffers = module.named_buffers();
  for (const auto& buffer : buffers) {
    const at::Tensor& own = buffer.value();
    if (auto problem = check(buffer.key(), own.sizes(), own.scalar_type()); !problem.empty()) {
      return problem;
    }
    ++known;
  }
  if (known == state.size()) return {};
  std::set<std::string> names;
  for (const PlannedName& name : model.names()) names.insert(name.name);
  for (const auto& buffer : buffers) names.insert(buffer.key());
  for (const auto& item : state) {
    if (!names.contains(item.key())) return "'" + item.key() + "' is not in the model";
  }
  return {};
}

// Rank 0's text on every rank.
std::string broadcast_text(Communicator& comm, const std::string& text) {
  at::Tensor length = at::full({1}, static_cast<std::int64_t>(text.size()), at::kLong);
  comm.broadcast(length, 0, {.tag = "FSDP: load"})->wait();
  at::Tensor bytes = at::zeros({length.item<std::int64_t>()}, at::kByte);
  if (comm.rank() == 0) std::memcpy(bytes.mutable_data_ptr(), text.data(), text.size());
  comm.broadcast(bytes, 0, {.tag = "FSDP: load"})->wait();
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

}  // namespace

void for_each_full_parameter(
    const FullySharded& model,
    const std::function<void(const std::string& name, const at::Tensor& full)>& visit) {
  ShardedModel& sharded = *model.sharded();
  const at::NoGradGuard no_grad;
  const auto& names = sharded.names();
  const auto unit_of = [&](std::size_t at) {
    return names[at].ignored() ? PlannedName::kIgnored
                               : main_part(sharded.groups(), names[at].unit);
  };
  sharded.announce("FSDP: reading the full state");
  for (std::size_t begin = 0; begin < names.size();) {
    // Names of one unit that follow each other are read in one gather.
    std::size_t end = begin;
    while (end < names.size() && unit_of(end) == unit_of(begin)) ++end;
    const auto visit_all = [&] {
      if (sharded.comm().rank() != 0) return;
      for (std::size_t i = begin; i < end; ++i) {
        const PlannedName& name = names[i];
        visit(name.name,
              name.ignored()
                  ? sharded.ignored()[name.parameter].tensor.detach().contiguous()
                  : sharded.groups()[name.unit].param().leaves()[name.parameter].master_view);
      }
    };
    if (names[begin].ignored()) {
      visit_all();
    } else {
      sharded.with_full(names[begin].unit, visit_all);
    }
    begin = end;
  }
}

StateDict full_state_dict(const FullySharded& model) {
  StateDict state;
  for_each_full_parameter(model, [&](const std::string& name, const at::Tensor& full) {
    state.insert(name, full.clone());
  });
  if (model.communicator()->rank() == 0) {
    for (const auto& buffer : model.root().named_buffers()) {
      state.insert(buffer.key(), buffer.value().detach().clone());
    }
  }
  return state;
}

void load_full_state_dict(FullySharded& model, const StateDict& state) {
  ShardedModel& sharded = *model.sharded();
  Communicator& comm = sharded.comm();
  const bool first = comm.rank() == 0;
  const std::string problem =
      broadcast_text(comm, first ? first_problem(sharded, model.root(), state) : std::string());
  CONVOY_REQUIRE(problem.empty(), kInvalidArgument, "FSDP: load_full_state_dict: ", problem);

  const at::NoGradGuard no_grad;
  const EditScope edit = model.edit();
  for (std::size_t u = 0; u < sharded.groups().size(); ++u) {
    const FlatParam& param = sharded.groups()[u].param();
    at::Tensor values;
    if (first) {
      values = at::zeros({param.layout().total_numel()},
                         sharded.groups()[u].storage().master().options());
      for (std::size_t i = 0; i < param.leaves().size(); ++i) {
        const ParameterPlace& place = param.layout().places[i];
        values.narrow(0, place.start, place.numel)
            .copy_(state[param.leaves()[i].name].detach().reshape({-1}));
      }
    }
    sharded.replace_values(u, values);
  }
  for (const auto& [name, tensor] : sharded.ignored()) {
    at::Tensor target = tensor.detach();
    if (first) target.copy_(state[name].detach());
    comm.broadcast(target, 0, {.tag = name})->wait();
  }
  for (const auto& buffer : model.root().named_buffers()) {
    at::Tensor target = buffer.value();
    if (first) target.copy_(state[buffer.key()].detach());
    comm.broadcast(target, 0, {.tag = buffer.key()})->wait();
  }
}

}  // namespace convoy::fsdp
