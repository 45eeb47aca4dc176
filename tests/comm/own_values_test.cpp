// Reductions that read this rank's values where they lie instead of copying them into the tensor.
#include "comm/values.h"
#include "convoy/comm/run_ranks.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>

#include <string>
#include <vector>

using namespace convoy;
using namespace convoy::test;

namespace {

// The rank's own part in two pieces, with a gap between them where the tensor itself is read.
OwnValues cut_in_pieces(const at::Tensor& values, ElementRange part, bool with_gap) {
  if (part.empty()) return {};
  const auto middle = part.begin + part.numel() / 2;
  const auto piece = [&](std::int64_t begin, std::int64_t end) {
    return OwnPiece{begin, values.narrow(0, begin, end - begin).clone()};
  };
  return {piece(part.begin, middle),
          piece(std::min(middle + (with_gap ? 3 : 0), part.end), part.end)};
}

// `tensor` as `values`, but for what the pieces hold: NaN there.
void fill_around(at::Tensor& tensor, const at::Tensor& values, const OwnValues& own) {
  tensor.copy_(values);
  for (const OwnPiece& piece : own) {
    tensor.narrow(0, piece.begin, piece.values.numel()).fill_(std::nan(""));
  }
}

void reduce_with_own_values(Rank& r, std::int64_t numel, at::ScalarType dtype, bool with_gap) {
  const auto what = concat(numel, " ", c10::toString(dtype), with_gap ? " with a gap" : "");
  const auto own_values = values_of(r.rank(), numel, dtype);
  const auto expected = reduced_values(r.size(), numel, dtype, ReduceOp::kAvg);
  auto tensor = r.comm().allocate(numel, dtype);
  auto own = cut_in_pieces(own_values, r.comm().own_part(OpKind::kAllReduce, tensor), with_gap);
  fill_around(tensor, own_values, own);
  r.comm().all_reduce(tensor, ReduceOp::kAvg, {.tag = what}, std::move(own))->wait();
  check_same_bits(tensor, expected, "all_reduce " + what);

  const auto share = numel / r.size();
  auto input = r.comm().allocate(share * r.size(), dtype);
  own = cut_in_pieces(own_values, r.comm().own_part(OpKind::kReduceScatter, input), with_gap);
  fill_around(input, own_values.narrow(0, 0, input.numel()), own);
  auto output = at::empty({share}, own_values.options());
  r.comm().reduce_scatter(output, input, ReduceOp::kAvg, {.tag = what}, std::move(own))->wait();
  check_same_bits(output, expected.narrow(0, share * r.rank(), share), "reduce_scatter " + what);
}

}  // namespace

TEST_CASE("own values may lie outside of the tensor that is reduced") {
  const auto world = GENERATE(1, 2, 3, 4, 5);
  run_ranks(world, [&](Rank& r) {
    for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
      // Over the stage, and directly.
      for (const std::int64_t numel : {0, 1, 7, 1003, 20011, 140003}) {
        for (const bool with_gap : {false, true}) reduce_with_own_values(r, numel, dtype, with_gap);
      }
    }
  });
}

TEST_CASE("own values stay with the rank also where a peer's tensor has to be staged") {
  run_ranks(3, [](Rank& r) {
    constexpr std::int64_t kNumel = 90011;
    const auto values = values_of(r.rank(), kNumel, at::kFloat);
    auto arena = r.comm().allocate(kNumel, at::kFloat);
    at::Tensor tensor = r.rank() == 1 ? at::empty({kNumel}) : arena;
    const auto part = r.comm().own_part(OpKind::kAllReduce, tensor);
    check(part.empty() == (r.rank() == 1), "only memory of the communicator has an own part");
    auto own = cut_in_pieces(values, part, true);
    fill_around(tensor, values, own);
    r.comm().all_reduce(tensor, ReduceOp::kSum, {}, std::move(own))->wait();
    check_same_bits(tensor, reduced_values(3, kNumel, at::kFloat, ReduceOp::kSum));
  });
}

TEST_CASE("the own parts of the ranks are the whole tensor, and read by one rank each") {
  const auto world = GENERATE(2, 3, 5);
  run_ranks(world, [&](Rank& r) {
    const auto tensor = r.comm().allocate(10007, at::kFloat);
    const auto part = r.comm().own_part(OpKind::kAllReduce, tensor);
    auto marks = at::zeros({10007}, at::kInt);
    marks.narrow(0, part.begin, part.numel()).fill_(1);
    r.comm().all_reduce(marks)->wait();
    check(marks.eq(1).all().item<bool>(), "each element has one reader");
  });
}

TEST_CASE("an operation lets go of own values when it is complete") {
  run_ranks(2, [](Rank& r) {
    auto tensor = r.comm().allocate(40000, at::kFloat);
    const auto part = r.comm().own_part(OpKind::kAllReduce, tensor);
    const auto values = at::ones({part.numel()});
    const auto work =
        r.comm().all_reduce(tensor, ReduceOp::kSum, {}, OwnValues{{part.begin, values}});
    work->wait();
    check_equal(values.use_count(), std::size_t{1}, "owners of the values");
  });
}

TEST_CASE("the gradient of a weight has one holder until somebody else keeps its memory") {
  const auto input = at::rand({4, 3});
  const auto weight = at::rand({5, 3}).requires_grad_();
  const auto gradient_of_weight = [&] {
    return torch::autograd::grad({at::linear(input, weight).sum()}, {weight}).front();
  };
  const at::Tensor gradient = gradient_of_weight();
  CHECK(gradient.is_view());
  CHECK(is_sole_holder(gradient));
  {
    const at::Tensor same = gradient;
    CHECK_FALSE(is_sole_holder(gradient));
  }
  {
    const at::Tensor other = gradient.detach();
    CHECK_FALSE(is_sole_holder(gradient));
  }
  {
    const at::Tensor base{gradient._base()};
    CHECK_FALSE(is_sole_holder(gradient));
  }
  CHECK(is_sole_holder(gradient));

  auto whole = at::rand({6});
  const at::Tensor part = whole.narrow(0, 2, 3);
  CHECK_FALSE(is_sole_holder(part));
  whole.reset();
  CHECK(is_sole_holder(part));
  CHECK(is_sole_holder(at::rand({3})));
  CHECK_FALSE(is_sole_holder(at::Tensor()));
}

TEST_CASE("own values that do not fit are refused with the range that would") {
  run_ranks(2, [](Rank& r) {
    auto tensor = r.comm().allocate(4000, at::kFloat);
    const auto part = r.comm().own_part(OpKind::kAllReduce, tensor);
    const auto refuse = [&](OwnValues own) {
      check_throws(ErrorKind::kInvalidArgument, concat(part.begin, " to ", part.end), [&] {
        r.comm().all_reduce(tensor, ReduceOp::kSum, {.tag = "x"}, std::move(own));
      });
    };
    refuse({{part.end, at::ones({1})}});
    refuse({{part.begin - 1, at::ones({1})}});
    refuse({{part.begin, at::ones({3})}, {part.begin + 2, at::ones({3})}});
    refuse({{part.begin, at::ones({3, 2}).select(1, 0)}});
    check_throws(ErrorKind::kInvalidArgument, "Double", [&] {
      r.comm().all_reduce(tensor, ReduceOp::kSum, {}, {{part.begin, at::ones({1}, at::kDouble)}});
    });
    auto other = at::zeros({4000});
    check_throws(ErrorKind::kInvalidArgument, "own_part", [&] {
      r.comm().all_reduce(other, ReduceOp::kSum, {}, {{0, at::ones({1})}});
    });
  });
}
