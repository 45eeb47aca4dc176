// Weight decay goes by the whole parameter's shape.
#include "convoy/optim/decay_groups.h"

#include "convoy/optim/adamw.h"
#include "support/catch.h"

#include <torch/torch.h>

namespace {

convoy::ShardSpan span(std::string name, std::vector<std::int64_t> sizes, at::Tensor leaf) {
  return {std::move(name), std::move(sizes), 0, leaf.numel(), leaf, false};
}

}  // namespace

TEST_CASE("decay_groups goes by true dimensions, skips frozen and tied, keeps empty slices") {
  const auto matrix = torch::ones({64}).requires_grad_();  // A 1-D slice of a matrix.
  const auto scalar = torch::ones({1}).requires_grad_();   // A scalar, held as [1].
  const auto bias = torch::ones({5}).requires_grad_();
  const auto empty = torch::ones({0, 4}).requires_grad_();  // A slice without rows.
  const auto frozen = torch::ones({2, 2});
  const std::vector<convoy::ShardSpan> spans = {
      span("w", {16, 16}, matrix), span("s", {}, scalar),     span("b", {5}, bias),
      span("e", {3, 4}, empty),    span("f", {2, 2}, frozen), span("tied", {16, 16}, matrix)};
  const auto groups = convoy::optim::decay_groups(spans, 0.1);
  REQUIRE(groups.size() == 2);
  REQUIRE(groups[0].params.size() == 2);
  REQUIRE(groups[0].params[0].is_same(matrix));
  REQUIRE(groups[0].params[1].is_same(empty));
  REQUIRE(groups[0].weight_decay == 0.1);
  REQUIRE(groups[1].params.size() == 2);
  REQUIRE(groups[1].params[0].is_same(scalar));
  REQUIRE(groups[1].params[1].is_same(bias));
  REQUIRE(groups[1].weight_decay == 0.0);

  convoy::optim::AdamW adamw(groups, {.lr = 0.5, .weight_decay = 0.9});
  matrix.mutable_grad() = torch::zeros_like(matrix);
  bias.mutable_grad() = torch::zeros_like(bias);
  adamw.step();
  REQUIRE(matrix.eq(static_cast<float>(1 - 0.5 * 0.1)).all().item<bool>());
  REQUIRE(bias.eq(1).all().item<bool>());
}
