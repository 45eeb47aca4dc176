// Arithmetic of batches.
#include "convoy/data/batch_plan.h"

#include "convoy/base/check.h"

namespace convoy::data {

BatchPlan plan_batch(std::int64_t global_batch, std::int64_t micro_batch, int world) {
  CONVOY_REQUIRE(global_batch >= 1 && micro_batch >= 1 && world >= 1, kInvalidArgument,
                 "batches must be at least 1: --global-batch is ", global_batch,
                 ", --micro-batch is ", micro_batch);
  const std::int64_t unit = micro_batch * world;
  CONVOY_REQUIRE(global_batch % unit == 0, kInvalidArgument, "--global-batch ", global_batch,
                 " does not divide into ", world, world == 1 ? " rank" : " ranks",
                 " with micro-batches of ", micro_batch, "; it must be a multiple of ", unit,
                 ", for example ", (global_batch / unit + 1) * unit);
  return {global_batch, micro_batch, global_batch / world, global_batch / unit};
}

std::int64_t EvaluationPlan::window(std::int64_t micro_step, int rank, std::int64_t row) const {
  const std::int64_t index = (micro_step * world + rank) * micro_batch + row;
  return index < windows ? index : -1;
}

EvaluationPlan plan_evaluation(std::int64_t windows, std::int64_t micro_batch, int world) {
  CONVOY_REQUIRE(windows >= 0 && micro_batch >= 1 && world >= 1, kInvalidArgument,
                 "an evaluation of ", windows, " windows in micro-batches of ", micro_batch);
  const std::int64_t unit = micro_batch * world;
  return {windows, micro_batch, (windows + unit - 1) / unit, world};
}

}  // namespace convoy::data
