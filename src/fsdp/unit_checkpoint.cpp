// Sets the units' option, and says what cannot be checkpointed.
#include "convoy/fsdp/unit_checkpoint.h"

#include "unit_choice.h"

#include <string>
#include <string_view>

namespace convoy::fsdp {
namespace {

UnitChoice choose_checkpoints(const torch::nn::Module& model, const WrapPolicy& policy) {
  try {
    UnitChoice choice = choose_units(model, policy, /*ignored=*/{});
    require_hits(choice, policy);
    return choice;
  } catch (const Error& error) {
    std::string_view text = error.what();  // Speaks of the other user of policies.
    if (text.starts_with("FSDP: ")) text.remove_prefix(6);
    throw Error(error.kind(), concat("checkpoint_units: ", text));
  }
}

}  // namespace

std::size_t checkpoint_units(torch::nn::Module& model, const WrapPolicy& policy,
                             const CheckpointOptions& options) {
  const UnitChoice choice = choose_checkpoints(model, policy);
  std::size_t count = 0;
  for (const ChosenModule& one : choice.modules) {
    if (!one.chosen) continue;
    one.unit->convoy_checkpoint() = options;
    ++count;
  }
  return count;
}

namespace detail {

void refuse_checkpoint(const torch::nn::Module& module) {
  throw Error(
      ErrorKind::kMisuse,
      concat("checkpoint_units: the forward of ", module.name(),
             " cannot be run again: it takes an argument that cannot be copied, or by "
             "reference to write to it, or returns something other than tensors, or tuples, "
             "vectors and maps of them. Leave this unit out, or use convoy::checkpoint "
             "inside its forward"));
}

std::shared_ptr<const torch::nn::Module> shared(const torch::nn::Module& module) {
  auto owner = module.weak_from_this().lock();
  CONVOY_REQUIRE(owner != nullptr, kMisuse, "checkpoint_units: ", module.name(),
                 " is not owned by a holder or shared_ptr, so it might be gone in backward");
  return owner;
}

}  // namespace detail

}  // namespace convoy::fsdp
