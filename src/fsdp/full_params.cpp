// The guard around a summoning.
#include "convoy/fsdp/full_params.h"

#include "convoy/base/error.h"
#include "convoy/fsdp/fsdp.h"
#include "sharded_model.h"

#include <exception>
#include <utility>

namespace convoy::fsdp {

FullParamsScope::FullParamsScope(std::shared_ptr<ShardedModel> model, const SummonOptions& options)
    : model_(std::move(model)), exceptions_(std::uncaught_exceptions()) {
  model_->summon(options);
}

FullParamsScope::~FullParamsScope() {
  if (!model_) return;
  const std::shared_ptr<ShardedModel> model = std::exchange(model_, nullptr);
  if (std::uncaught_exceptions() > exceptions_) {
    model->abandon_summon();
    return;
  }
  try {
    model->end_summon();
  } catch (const Error& error) {
    if (model->comm().size() > 1) model->comm().abort(error);
  } catch (const std::exception& error) {
    model->comm().abort(Error(ErrorKind::kFailed, error.what()));
  }
}

void FullParamsScope::close() {
  if (model_) std::exchange(model_, nullptr)->end_summon();
}

FullParamsScope summon_full_params(FullySharded& model, const SummonOptions& options) {
  return {model.sharded(), options};
}

}  // namespace convoy::fsdp
