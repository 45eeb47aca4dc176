// Walks the modules once and assigns parameters to units, refusing what could not be sharded.
#include "unit_plan.h"

#include "convoy/base/check.h"

#include <algorithm>
#include <unordered_map>

namespace convoy::fsdp {
namespace {

constexpr std::size_t kNamesInText = 5;

// "a, b, c and 7 more".
std::string listed(const std::vector<std::string>& names) {
  std::string text;
  for (std::size_t i = 0; i < std::min(names.size(), kNamesInText); ++i) {
    text += (i == 0 ? "'" : ", '") + names[i] + "'";
  }
  if (names.size() > kNamesInText) text += concat(" and ", names.size() - kNamesInText, " more");
  return text;
}

std::string parent_path(const std::string& name) {
  const auto dot = name.rfind('.');
  return dot == std::string::npos ? std::string() : name.substr(0, dot);
}

// What the policy says about one module, remembering which rules have matched anything.
class Chooser {
 public:
  explicit Chooser(const WrapPolicy& policy)
      : rules_(policy.rules()), matched_(policy.rules().size()) {}

  bool chooses(const std::string& name, const torch::nn::Module& module, bool is_unit) {
    bool chosen = false;
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      if (!rules_[i].matches(name, module)) continue;
      CONVOY_REQUIRE(is_unit, kInvalidArgument, "FSDP: ", rules_[i].description,
                     " matches module '", name, "' (", module.name(),
                     "), which is not a convoy::Unit; write `using X = convoy::Unit<XImpl>;`");
      matched_[i] = true;
      chosen = true;
    }
    return chosen;
  }

  void require_all_matched(const std::vector<std::string>& unit_names) const {
    for (std::size_t i = 0; i < rules_.size(); ++i) {
      CONVOY_REQUIRE(matched_[i] || rules_[i].may_miss, kInvalidArgument,
                     "FSDP: ", rules_[i].description,
                     " matches no unit; the units of this model are ",
                     unit_names.empty() ? "none" : listed(unit_names));
    }
  }

 private:
  const std::vector<WrapPolicy::Rule>& rules_;
  std::vector<bool> matched_;
};

class Planner {
 public:
  Planner(torch::nn::Module& model, const WrapPolicy& policy) : model_(model), chooser_(policy) {}

  UnitPlan run() {
    for (const auto& item : model_.named_modules()) visit(item.key(), *item.value());
    chooser_.require_all_matched(unit_names_);
    CONVOY_REQUIRE(outside_.empty(), kInvalidArgument,
                   "FSDP: parameters outside of every unit: ", listed(outside_),
                   "; make the model itself a convoy::Unit, the root unit takes ", "the rest");
    CONVOY_REQUIRE(!plan_.units.empty(), kInvalidArgument,
                   "FSDP: the model has no convoy::Unit to shard");
    require_no_overlap();
    return std::move(plan_);
  }

 private:
  void visit(const std::string& path, torch::nn::Module& module) {
    auto* unit = dynamic_cast<UnitBase*>(&module);
    const bool is_root = path.empty();
    if (unit != nullptr && !is_root) unit_names_.push_back(path);
    int owner = is_root ? -1 : owner_of_path_.at(parent_path(path));
    if (const auto known = unit_of_module_.find(&module); known != unit_of_module_.end()) {
      owner = known->second;  // one module under a second name
    } else if (chooser_.chooses(path, module, unit != nullptr) || (is_root && unit != nullptr)) {
      CONVOY_REQUIRE(unit->convoy_unit_behaviour() == nullptr, kInvalidArgument, "FSDP: unit '",
                     is_root ? "(root)" : path,
                     "' is wrapped already; a module can be sharded once");
      plan_.units.push_back({.name = is_root ? "(root)" : path,
                             .unit = unit,
                             .parent = owner,
                             .is_root = is_root,
                             .parameters = {}});
      owner = static_cast<int>(plan_.units.size()) - 1;
      unit_of_module_[&module] = owner;
    }
    owner_of_path_[path] = owner;
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      take(path.empty() ? parameter.key() : path + "." + parameter.key(), parameter.value(), owner);
    }
  }

  void take(const std::string& name, const at::Tensor& tensor, int owner) {
    if (owner < 0) {
      outside_.push_back(name);
      return;
    }
    const auto unit = static_cast<std::size_t>(owner);
    const auto [known, is_new] =
        taken_.try_emplace(tensor.unsafeGetTensorImpl(), PlannedName{name, unit, 0});
    if (!is_new) {
      CONVOY_REQUIRE(known->second.unit == unit, kInvalidArgument, "FSDP: '", known->second.name,
                     "' (unit ", plan_.units[known->second.unit].name, ") and '", name, "' (unit ",
                     plan_.units[unit].name,
                     ") are one tensor; tied parameters must lie in one "
                     "unit: wrap fewer units");
      plan_.names.push_back({name, unit, known->second.parameter});
      return;
    }
    require_shardable(name, tensor);
    auto& parameters = plan_.units[unit].parameters;
    known->second.parameter = parameters.size();
    plan_.names.push_back({name, unit, parameters.size()});
    parameters.push_back({name, tensor});
  }

  void require_shardable(const std::string& name, const at::Tensor& tensor) {
    const auto dtype = tensor.scalar_type();
    CONVOY_REQUIRE(dtype == at::kFloat || dtype == at::kDouble, kInvalidArgument, "FSDP: '", name,
                   "' is ", c10::toString(dtype), "; parameters must be float32 or float64");
    if (taken_.size() == 1) plan_.dtype = dtype;
    CONVOY_REQUIRE(dtype == plan_.dtype, kInvalidArgument, "FSDP: '", name, "' is ",
                   c10::toString(dtype), " where other parameters are ", c10::toString(plan_.dtype),
                   "; all must have one dtype");
    CONVOY_REQUIRE(tensor.device().is_cpu() && tensor.layout() == at::kStrided, kInvalidArgument,
                   "FSDP: '", name, "' is not a dense CPU tensor");
    CONVOY_REQUIRE(tensor.is_leaf(), kInvalidArgument, "FSDP: '", name,
                   "' is the result of an operation, not a leaf");
    CONVOY_REQUIRE(!tensor.grad().defined(), kInvalidArgument, "FSDP: '", name,
                   "' has a gradient already; wrap the model before its first backward, or drop "
                   "gradients with model->zero_grad() first");
  }

  // Two parameters that are different tensors over the same memory would drift apart once sharded.
  void require_no_overlap() const {
    struct Range {
      const char* begin;
      const char* end;
      const std::string* name;
    };
    std::vector<Range> ranges;
    for (const PlannedUnit& unit : plan_.units) {
      for (const PlannedParameter& parameter : unit.parameters) {
        const auto* begin = static_cast<const char*>(parameter.tensor.const_data_ptr());
        if (parameter.tensor.numel() == 0) continue;
        std::int64_t last = 0;
        for (std::int64_t d = 0; d < parameter.tensor.dim(); ++d) {
          last += (parameter.tensor.size(d) - 1) * parameter.tensor.stride(d);
        }
        const auto item = static_cast<std::int64_t>(parameter.tensor.element_size());
        ranges.push_back({begin, begin + (last + 1) * item, &parameter.name});
      }
    }
    std::sort(ranges.begin(), ranges.end(),
              [](const Range& a, const Range& b) { return a.begin < b.begin; });
    for (std::size_t i = 1; i < ranges.size(); ++i) {
      CONVOY_REQUIRE(ranges[i].begin >= ranges[i - 1].end, kInvalidArgument, "FSDP: '",
                     *ranges[i - 1].name, "' and '", *ranges[i].name,
                     "' share memory but are two tensors; register one tensor twice to tie them");
    }
  }

  torch::nn::Module& model_;
  Chooser chooser_;
  UnitPlan plan_;
  std::unordered_map<std::string, int> owner_of_path_;
  std::unordered_map<const torch::nn::Module*, int> unit_of_module_;
  std::unordered_map<const c10::TensorImpl*, PlannedName> taken_;
  std::vector<std::string> unit_names_;
  std::vector<std::string> outside_;
};

}  // namespace

UnitPlan plan_units(torch::nn::Module& model, const WrapPolicy& policy) {
  return Planner(model, policy).run();
}

}  // namespace convoy::fsdp
