// Every operation over types, sizes, worlds and kinds of memory, exact against the definition.
#include "comm/values.h"
#include "convoy/comm/run_ranks.h"
#include "support/catch.h"
#include "support/check.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <string>
#include <vector>

using namespace convoy;
using namespace convoy::test;

namespace {

enum class Place { kArena, kOrdinary, kStrided, kMixed };

// All for one type; for the others, whose bytes travel alike, one that is direct and one that is
// not.
std::vector<Place> places_for(at::ScalarType dtype) {
  if (dtype != at::kFloat) return {Place::kArena, Place::kStrided};
  return {Place::kArena, Place::kOrdinary, Place::kStrided, Place::kMixed};
}

const char* name_of(Place place) {
  switch (place) {
    case Place::kArena: return "arena";
    case Place::kOrdinary: return "ordinary";
    case Place::kStrided: return "strided";
    case Place::kMixed: return "mixed";
  }
  return "?";
}

// A tensor of `values` in the wanted kind of memory. Collective. In a strided one the neighbours
// hold sentinels.
class Placed {
 public:
  Placed(Rank& r, const at::Tensor& values, Place place) {
    const auto numel = values.numel();
    const bool in_arena = place == Place::kArena || (place == Place::kMixed && r.rank() % 2 == 0);
    if (place == Place::kArena || place == Place::kMixed) {
      const auto arena = r.comm().allocate(numel, values.scalar_type());
      tensor = in_arena ? arena : at::empty_like(values);
    } else if (place == Place::kOrdinary) {
      tensor = at::empty_like(values);
    } else {
      whole_ = at::ones({numel, 2}, values.options());
      tensor = whole_.select(1, 0);
    }
    tensor.copy_(values);
  }
  void check_neighbours() const {
    if (whole_.defined())
      check(whole_.select(1, 1).eq(1).all().item<bool>(), "a neighbour changed");
  }

  at::Tensor tensor;

 private:
  at::Tensor whole_;
};

const std::vector<at::ScalarType> kTypes = {at::kDouble, at::kFloat, at::kBFloat16, at::kHalf,
                                            at::kLong,   at::kInt,   at::kByte,     at::kBool};

// Below and above what goes over the stage although it lies in the arena, and above one chunk.
std::vector<std::int64_t> sizes_for(at::ScalarType dtype) {
  if (dtype == at::kFloat) return {0, 1, 2, 3, 5, 17, 1003, 9001, 140003};
  if (dtype == at::kBFloat16) return {1, 17, 20011};
  return {1, 5, 8011};
}

std::vector<ReduceOp> ops_for(at::ScalarType dtype, std::int64_t numel) {
  if (numel > 100000) return {ReduceOp::kAvg};
  if (!at::isFloatingType(dtype)) return {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax};
  return {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax};
}

// What every rank brings and what must come out, made once for all ranks. Inputs of reduce_scatter
// are the whole; all_reduce takes their first part.
struct ReduceCase {
  at::ScalarType dtype;
  std::int64_t numel;
  std::vector<at::Tensor> inputs;
  std::vector<std::pair<ReduceOp, at::Tensor>> results;
};

std::vector<ReduceCase> reduce_cases(int world) {
  std::vector<ReduceCase> cases;
  for (const auto dtype : kTypes) {
    for (const auto numel : sizes_for(dtype)) {
      ReduceCase made{dtype, numel, {}, {}};
      for (int r = 0; r < world; ++r) made.inputs.push_back(values_of(r, numel * world, dtype));
      for (const auto op : ops_for(dtype, numel)) {
        made.results.emplace_back(op, reduced(made.inputs, op));
      }
      cases.push_back(std::move(made));
    }
  }
  return cases;
}

void reduce_everything(Rank& r, const ReduceCase& c, Place place) {
  const auto& own = c.inputs[static_cast<std::size_t>(r.rank())];
  for (const auto& [op, expected] : c.results) {
    const auto what =
        concat(to_string(op), " of ", c.numel, " ", c10::toString(c.dtype), " ", name_of(place));
    Placed all(r, own.narrow(0, 0, c.numel), place);
    r.comm().all_reduce(all.tensor, op, {.tag = what})->wait();
    check_same_bits(all.tensor.contiguous(), expected.narrow(0, 0, c.numel), "all_reduce " + what);
    all.check_neighbours();

    Placed input(r, own, place);
    Placed output(r, own.narrow(0, 0, c.numel), place);
    r.comm().reduce_scatter(output.tensor, input.tensor, op)->wait();
    check_same_bits(output.tensor.contiguous(), expected.narrow(0, c.numel * r.rank(), c.numel),
                    "reduce_scatter " + what);
    check_same_bits(input.tensor.contiguous(), own, "the input of reduce_scatter " + what);
    output.check_neighbours();
  }
}

void move_everything(Rank& r, at::ScalarType dtype, Place place) {
  for (const auto numel : sizes_for(dtype)) {
    const auto what = concat(numel, " ", c10::toString(dtype), " ", name_of(place));
    std::vector<at::Tensor> all;
    for (int p = 0; p < r.size(); ++p) all.push_back(values_of(p, numel, dtype, 1));
    Placed input(r, all[static_cast<std::size_t>(r.rank())], place);
    Placed output(r, values_of(r.rank(), numel * r.size(), dtype, 9), place);
    r.comm().all_gather(output.tensor, input.tensor)->wait();
    check_same_bits(output.tensor.contiguous(), at::cat(all), "all_gather " + what);
    output.check_neighbours();
    for (const int root : {0, r.size() - 1}) {
      Placed tensor(r, values_of(r.rank(), numel, dtype, root), place);
      r.comm().broadcast(tensor.tensor, root)->wait();
      check_same_bits(tensor.tensor.contiguous(), values_of(root, numel, dtype, root),
                      concat("broadcast from ", root, " of ", what));
      tensor.check_neighbours();
    }
  }
}

}  // namespace

TEST_CASE("all_reduce and reduce_scatter are exact in every type, size and place") {
  const auto world = GENERATE(1, 2, 3, 4, 5);
  at::set_num_threads(1);
  const auto cases = reduce_cases(world);
  run_ranks(world, [&](Rank& r) {
    at::set_num_threads(1);
    for (const auto& c : cases) {
      for (const auto place : places_for(c.dtype)) reduce_everything(r, c, place);
    }
  });
}

TEST_CASE("all_gather and broadcast are exact in every type, size and place") {
  const auto world = GENERATE(1, 2, 3, 4, 5);
  run_ranks(world, [](Rank& r) {
    at::set_num_threads(1);
    for (const auto dtype : kTypes) {
      for (const auto place : places_for(dtype)) move_everything(r, dtype, place);
    }
    // Types that cannot be reduced are moved as bytes.
    auto complex =
        at::complex(values_of(r.rank(), 5, at::kFloat), values_of(r.rank(), 5, at::kFloat, 3));
    const auto expected = at::complex(values_of(0, 5, at::kFloat), values_of(0, 5, at::kFloat, 3));
    r.comm().broadcast(complex, 0)->wait();
    check(at::equal(complex, expected), "broadcast of complex values");
  });
}

TEST_CASE("all_gather takes parts of different sizes, some of them empty") {
  const auto world = GENERATE(1, 2, 3, 5);
  const auto scale = GENERATE(std::int64_t{1}, std::int64_t{90001});
  run_ranks(world, [scale](Rank& r) {
    for (const bool in_arena : {false, true}) {
      std::vector<at::Tensor> outputs;
      for (int p = 0; p < r.size(); ++p) outputs.push_back(at::zeros({(p * 2 % 3) * scale}));
      const auto values = values_of(r.rank(), (r.rank() * 2 % 3) * scale, at::kFloat);
      auto input = in_arena ? r.comm().allocate(2 * scale, at::kFloat).narrow(0, 0, values.numel())
                            : at::empty_like(values);
      input.copy_(values);
      r.comm().all_gather(outputs, input)->wait();
      for (int p = 0; p < r.size(); ++p) {
        check_same_bits(outputs[static_cast<std::size_t>(p)],
                        values_of(p, (p * 2 % 3) * scale, at::kFloat), concat("part ", p));
      }
    }
  });
}

TEST_CASE("outputs may be the rank's own part of the input, and the other way round") {
  run_ranks(3, [](Rank& r) {
    for (const std::int64_t numel : {7, 30011}) {
      for (const bool in_arena : {false, true}) {
        auto whole = in_arena ? r.comm().allocate(numel * 3, at::kFloat) : at::empty({numel * 3});
        whole.copy_(values_of(r.rank(), numel * 3, at::kFloat));
        auto part = whole.narrow(0, numel * r.rank(), numel);
        r.comm().reduce_scatter(part, whole, ReduceOp::kAvg)->wait();
        const auto expected = reduced_values(3, numel * 3, at::kFloat, ReduceOp::kAvg);
        check_same_bits(part, expected.narrow(0, numel * r.rank(), numel), "in place");
        r.comm().all_gather(whole, part)->wait();
        check_same_bits(whole, expected, "gathered in place");
        check_throws(ErrorKind::kInvalidArgument, "overlap", [&] {
          r.comm().all_gather(whole, whole.narrow(0, (numel * r.rank() + 1) % numel, numel));
        });
      }
    }
  });
}

TEST_CASE("NaN travels through min, max and sum, and infinity stays") {
  run_ranks(3, [](Rank& r) {
    const auto nan = std::numeric_limits<float>::quiet_NaN();
    const auto inf = std::numeric_limits<float>::infinity();
    for (const auto dtype : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble}) {
      for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
        auto t = at::zeros({9}, at::TensorOptions().dtype(dtype));
        t[r.rank()] = nan;
        t[3 + r.rank()] = inf;
        t[6 + r.rank()] = -0.0;
        r.comm().all_reduce(t, op)->wait();
        check(t.narrow(0, 0, 3).isnan().all().item<bool>(), "NaN is lost");
        if (op != ReduceOp::kMin)
          check(t.narrow(0, 3, 3).isinf().all().item<bool>(), "inf is lost");
        check(t.narrow(0, 6, 3).eq(0).all().item<bool>(), "zeros changed");
      }
    }
  });
}

TEST_CASE("C066: empty tensors and a world of one") {
  const auto world = GENERATE(1, 2, 3);
  run_ranks(world, [](Rank& r) {
    const auto empty = [] { return at::zeros({1, 0, 2}); };
    auto t = empty();
    for (const auto op : {ReduceOp::kSum, ReduceOp::kAvg, ReduceOp::kMin, ReduceOp::kMax}) {
      r.comm().all_reduce(t, op)->wait();
      r.comm().reduce_scatter(t, empty(), op)->wait();
    }
    r.comm().all_gather(t, empty())->wait();
    r.comm()
        .all_gather(std::vector<at::Tensor>(static_cast<std::size_t>(r.size()), t), empty())
        ->wait();
    r.comm().broadcast(t, r.size() - 1)->wait();
    r.comm().barrier()->wait();
    check(t.sizes() == at::IntArrayRef({1, 0, 2}), "the shape changed");
    // Empty on the last rank only.
    std::vector<at::Tensor> parts;
    for (int i = 0; i < r.size(); ++i) {
      parts.push_back(at::zeros({1, i + 1 == r.size() ? 0 : i + 3, 2}));
    }
    const auto own = static_cast<std::size_t>(r.rank());
    const auto given = values_of(r.rank(), parts[own].numel(), at::kFloat).view_as(parts[own]);
    r.comm().all_gather(parts, given)->wait();
    for (int i = 0; i < r.size(); ++i) {
      const auto& part = parts[static_cast<std::size_t>(i)];
      check_same_bits(part.flatten(), values_of(i, part.numel(), at::kFloat), "a part");
    }
    // A world of one changes nothing.
    const auto whole = values_of(r.rank(), 7, at::kFloat);
    auto reduced = whole.clone();
    r.comm().all_reduce(reduced, ReduceOp::kAvg)->wait();
    if (r.size() == 1) check_same_bits(reduced, whole, "the identity");
    const auto nothing = r.comm().allocate(0, at::kFloat);
    check_equal(nothing.numel(), 0, "allocated nothing");
  });
}

TEST_CASE("C067: non-contiguous inputs give the values of contiguous ones, neighbours stay") {
  run_ranks(2, [](Rank& r) {
    auto column = [&](int seed) {
      auto whole = at::full({2, 2}, -7.0F);
      whole.select(1, 0).copy_(values_of(r.rank(), 2, at::kFloat, seed));
      return whole;
    };
    const auto untouched = [](const at::Tensor& whole) {
      check(whole.select(1, 1).eq(-7).all().item<bool>(), "a neighbour changed");
    };
    auto a = column(1);
    r.comm().all_reduce(a.select(1, 0))->wait();
    check_same_bits(a.select(1, 0).contiguous(),
                    reduced_values(2, 2, at::kFloat, ReduceOp::kSum, 1));
    untouched(a);
    auto b = column(2);
    r.comm().broadcast(b.select(1, 0), 1)->wait();
    check_same_bits(b.select(1, 0).contiguous(), values_of(1, 2, at::kFloat, 2));
    untouched(b);
    auto c = at::full({4, 2}, -7.0F);
    r.comm().all_gather(c.select(1, 0), column(3).select(1, 0))->wait();
    check_same_bits(c.select(1, 0).contiguous(),
                    at::cat({values_of(0, 2, at::kFloat, 3), values_of(1, 2, at::kFloat, 3)}));
    untouched(c);
    auto d = at::full({1, 2}, -7.0F);
    r.comm().reduce_scatter(d.select(1, 0), column(4).select(1, 0))->wait();
    check_same_bits(d.select(1, 0).contiguous(),
                    reduced_values(2, 2, at::kFloat, ReduceOp::kSum, 4).narrow(0, r.rank(), 1));
    untouched(d);
    // Permuted and channels-last tensors too.
    auto e = values_of(r.rank(), 24, at::kFloat, 5).view({2, 3, 4}).permute({2, 0, 1});
    r.comm().all_reduce(e)->wait();
    check_same_bits(e.permute({1, 2, 0}).contiguous().flatten(),
                    reduced_values(2, 24, at::kFloat, ReduceOp::kSum, 5));
  });
}

TEST_CASE("tensors that require gradients are reduced in place, without a graph") {
  run_ranks(2, [](Rank& r) {
    auto leaf = values_of(r.rank(), 5, at::kFloat).requires_grad_();
    auto strided = at::zeros({5, 2}).requires_grad_();
    r.comm().all_reduce(leaf, ReduceOp::kAvg)->wait();
    r.comm().all_reduce(strided.select(1, 1), ReduceOp::kAvg)->wait();
    check_same_bits(leaf.detach(), reduced_values(2, 5, at::kFloat, ReduceOp::kAvg));
    check(leaf.is_leaf() && leaf.requires_grad(), "no leaf any more");
  });
}
