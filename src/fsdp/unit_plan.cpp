// Makes units of the chosen modules, and assigns parameters to them.
#include "unit_plan.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <unordered_map>
#include <utility>

namespace convoy::fsdp {
namespace {

using Impl = const c10::TensorImpl*;

// Tensors of which any name is matched, by first name; each rule must match something.
std::vector<PlannedParameter> find_ignored(const torch::nn::Module& model,
                                           const ParameterFilter& filter) {
  std::vector<PlannedParameter> found;
  std::unordered_set<Impl> seen;
  std::vector<bool> hit(filter.rules().size());
  for (const auto& item : model.named_parameters()) {
    bool any = false;
    for (std::size_t i = 0; i < hit.size(); ++i) {
      if (!filter.rules()[i].matches(item.key(), item.value())) continue;
      hit[i] = true;
      any = true;
    }
    if (any && seen.insert(item.value().unsafeGetTensorImpl()).second) {
      found.push_back({item.key(), item.value()});
    }
  }
  for (std::size_t i = 0; i < hit.size(); ++i) {
    CONVOY_REQUIRE(hit[i], kInvalidArgument, "FSDP: ignored: ", filter.rules()[i].description,
                   " matches no parameter of the model");
  }
  return found;
}

class Planner {
 public:
  Planner(const torch::nn::Module& model, const WrapPolicy& policy, const ParameterFilter& ignored,
          PlanAllowance allowance)
      : allowance_(allowance) {
    plan_.ignored = find_ignored(model, ignored);
    std::unordered_set<Impl> impls;
    for (std::size_t i = 0; i < plan_.ignored.size(); ++i) {
      ignored_[plan_.ignored[i].tensor.unsafeGetTensorImpl()] = i;
      impls.insert(plan_.ignored[i].tensor.unsafeGetTensorImpl());
    }
    plan_.choice = choose_units(model, policy, impls);
    if (!allowance.misses) require_hits(plan_.choice, policy);
  }

  UnitPlan run() {
    for (const ChosenModule& module : plan_.choice.modules) visit(module);
    CONVOY_REQUIRE(outside_.empty(), kInvalidArgument,
                   "FSDP: parameters outside of every unit: ", quoted_list(outside_),
                   "; make the model itself a convoy::Unit, the root unit takes the rest");
    CONVOY_REQUIRE(!plan_.units.empty(), kInvalidArgument,
                   "FSDP: the model has no convoy::Unit to shard");
    resolve_ties();
    assign();
    split_frozen_parts();
    return std::move(plan_);
  }

 private:
  struct Sighting {
    std::string name;
    at::Tensor tensor;
    std::size_t unit;
  };
  // Blocks of one container that share a unit which has room left.
  struct Group {
    std::size_t unit = 0;
    int blocks = 0;
    int room = 0;
  };

  void visit(const ChosenModule& one) {
    const bool is_root = one.path.empty();
    int owner = is_root ? -1 : owner_of_path_.at(parent_path(one.path));
    if (const auto known = unit_of_module_.find(one.module); known != unit_of_module_.end()) {
      owner = known->second;  // one module under a second name
    } else if (one.chosen || (is_root && one.unit != nullptr)) {
      CONVOY_REQUIRE(allowance_.wrapped || one.unit->convoy_unit_behaviour() == nullptr,
                     kInvalidArgument, "FSDP: unit '", is_root ? kRootName : one.path,
                     "' is wrapped already; a module can be sharded once");
      owner = static_cast<int>(unit_for(one, owner));
      unit_of_module_[one.module] = owner;
    }
    owner_of_path_[one.path] = owner;
    for (const auto& parameter : one.module->named_parameters(/*recurse=*/false)) {
      see(one.path.empty() ? parameter.key() : one.path + "." + parameter.key(), parameter.value(),
          owner);
    }
  }

  // A unit of its own, or the one that the block before it in the container has begun.
  std::size_t unit_for(const ChosenModule& one, int parent) {
    const bool is_root = one.path.empty();
    if (!is_root) {
      Group& group = groups_[parent_path(one.path)];
      if (group.blocks == one.blocks && group.room > 0) {
        --group.room;
        PlannedUnit& unit = plan_.units[group.unit];
        unit.modules.push_back(one.unit);
        unit.paths.push_back(one.path);
        unit.name = unit.paths.front() + ".." + one.path.substr(one.path.rfind('.') + 1);
        return group.unit;
      }
      group = {plan_.units.size(), one.blocks, one.blocks - 1};
    }
    plan_.units.push_back({.name = is_root ? kRootName : one.path,
                           .modules = {one.unit},
                           .paths = {one.path},
                           .parent = parent,
                           .is_root = is_root,
                           .borrows_from = {},
                           .parameters = {}});
    return plan_.units.size() - 1;
  }

  void see(const std::string& name, const at::Tensor& tensor, int owner) {
    if (ignored_.contains(tensor.unsafeGetTensorImpl())) {
      sightings_.push_back({name, tensor, PlannedName::kIgnored});
    } else if (owner < 0) {
      outside_.push_back(name);
    } else {
      sightings_.push_back({name, tensor, static_cast<std::size_t>(owner)});
    }
  }

  // The innermost unit around both, or -1.
  int common_unit(std::size_t a, std::size_t b) const {
    for (int x = static_cast<int>(a); x >= 0; x = plan_.units[static_cast<std::size_t>(x)].parent) {
      for (int y = static_cast<int>(b); y >= 0;
           y = plan_.units[static_cast<std::size_t>(y)].parent) {
        if (x == y) return x;
      }
    }
    return -1;
  }

  // A tied tensor goes to the innermost unit around all its names: that one is full while any unit
  // inside of it runs.
  void resolve_ties() {
    std::unordered_map<Impl, const Sighting*> first;
    for (const Sighting& one : sightings_) {
      if (one.unit == PlannedName::kIgnored) continue;
      const auto [known, is_new] = first.try_emplace(one.tensor.unsafeGetTensorImpl(), &one);
      auto& home = home_of_[one.tensor.unsafeGetTensorImpl()];
      if (is_new) {
        home = one.unit;
        continue;
      }
      const int common = common_unit(home, one.unit);
      CONVOY_REQUIRE(common >= 0, kInvalidArgument, "FSDP: '", known->second->name, "' (unit ",
                     plan_.units[known->second->unit].name, ") and '", one.name, "' (unit ",
                     plan_.units[one.unit].name,
                     ") are one tensor, and no unit lies around both; make the module around them "
                     "a convoy::Unit, or wrap fewer units");
      home = static_cast<std::size_t>(common);
    }
  }

  void assign() {
    std::unordered_map<Impl, std::size_t> place_of;
    std::vector<PlannedParameter> all;
    for (const Sighting& one : sightings_) {
      const Impl impl = one.tensor.unsafeGetTensorImpl();
      if (one.unit == PlannedName::kIgnored) {
        plan_.names.push_back({one.name, PlannedName::kIgnored, ignored_.at(impl)});
        continue;
      }
      const std::size_t home = home_of_.at(impl);
      auto& borrows = plan_.units[one.unit].borrows_from;
      if (home != one.unit && std::find(borrows.begin(), borrows.end(), home) == borrows.end()) {
        borrows.push_back(home);
      }
      auto& parameters = plan_.units[home].parameters;
      const auto [place, is_new] = place_of.try_emplace(impl, parameters.size());
      plan_.names.push_back({one.name, home, place->second});
      if (!is_new) continue;
      require_shardable({one.name, one.tensor}, allowance_.meta);
      if (all.empty()) plan_.dtype = one.tensor.scalar_type();
      CONVOY_REQUIRE(one.tensor.scalar_type() == plan_.dtype, kInvalidArgument, "FSDP: '", one.name,
                     "' is ", c10::toString(one.tensor.scalar_type()),
                     " where other parameters are ", c10::toString(plan_.dtype),
                     "; all must have one dtype");
      parameters.push_back({one.name, one.tensor});
      all.push_back({one.name, one.tensor});
    }
    require_no_overlap(all);
  }

  void split_frozen_parts() {
    const std::size_t count = plan_.units.size();
    std::vector<std::vector<PlannedName>> moved(count);  // Where each parameter is now.
    for (std::size_t u = 0; u < count; ++u) {
      auto all = std::exchange(plan_.units[u].parameters, {});
      const auto trains = [](const PlannedParameter& p) { return p.tensor.requires_grad(); };
      const bool mixed = std::any_of(all.begin(), all.end(), trains) &&
                         !std::all_of(all.begin(), all.end(), trains);
      const std::size_t frozen_part = plan_.units.size();
      if (mixed) {
        plan_.units.push_back({.name = plan_.units[u].name + " (frozen part)",
                               .modules = {},
                               .paths = {},
                               .parent = plan_.units[u].parent,
                               .part_of = static_cast<int>(u),
                               .borrows_from = {},
                               .parameters = {}});
      }
      for (PlannedParameter& parameter : all) {
        const std::size_t target = mixed && !trains(parameter) ? frozen_part : u;
        moved[u].push_back({{}, target, plan_.units[target].parameters.size()});
        plan_.units[target].parameters.push_back(std::move(parameter));
      }
    }
    for (PlannedName& name : plan_.names) {
      if (name.ignored()) continue;
      const PlannedName& now = moved[name.unit][name.parameter];
      name.unit = now.unit;
      name.parameter = now.parameter;
    }
  }

  PlanAllowance allowance_;
  UnitPlan plan_;
  std::unordered_map<std::string, int> owner_of_path_;
  std::unordered_map<const torch::nn::Module*, int> unit_of_module_;
  std::unordered_map<std::string, Group> groups_;  // By path of the container.
  std::unordered_map<Impl, std::size_t> ignored_;
  std::unordered_map<Impl, std::size_t> home_of_;
  std::vector<Sighting> sightings_;
  std::vector<std::string> outside_;
};

}  // namespace

UnitPlan plan_units(const torch::nn::Module& model, const WrapPolicy& policy,
                    const ParameterFilter& ignored, PlanAllowance allowance) {
  return Planner(model, policy, ignored, allowance).run();
}

void require_kept_units(const UnitPlan& plan, const ReshardAfterForward& reshards) {
  const std::string& pattern = reshards.kept_pattern();
  if (pattern.empty()) return;
  std::vector<std::string> names;
  for (const PlannedUnit& unit : plan.units) {
    if (unit.part_of < 0 && !unit.is_root) names.push_back(unit.key());
  }
  const bool any = std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name_matches(pattern, name);
  });
  CONVOY_REQUIRE(any, kInvalidArgument, "FSDP: keep_after_forward(\"", pattern,
                 "\") matches no unit", known_units(pattern, names));
}

}  // namespace convoy::fsdp
