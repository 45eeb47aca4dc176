// Wrapping: what is compared between the ranks, what is copied, and what is refused.
#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"
#include "convoy/ddp/ddp.h"
#include "convoy/ddp/state_dict.h"
#include "ddp/model_check.h"
#include "ddp/models.h"
#include "support/catch.h"
#include "support/check.h"

#include <torch/torch.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

namespace convoy::test {
namespace {

/// A module of named parameters and buffers, without a use for them.
class BagImpl : public torch::nn::Module {
 public:
  torch::Tensor forward(const torch::Tensor& x) { return x; }
  BagImpl& parameter(const std::string& name, const torch::Tensor& value, bool trains = true) {
    register_parameter(name, value, trains);
    return *this;
  }
  BagImpl& buffer(const std::string& name, const torch::Tensor& value) {
    register_buffer(name, value);
    return *this;
  }
};
TORCH_MODULE(Bag);

/// What wrapping `make(rank)` says on each of two ranks; all of it must be one text.
std::string text_on_all(ErrorKind kind, const std::function<Bag(int)>& make,
                        const std::function<DistributedDataParallelOptions(int)>& options = {}) {
  std::mutex mutex;
  std::map<int, std::string> texts;
  run_ranks(
      2,
      [&](Rank& rank) {
        const auto error = check_throws(kind, "", [&] {
          DistributedDataParallel ddp(
              make(rank.rank()), rank.comm_ptr(),
              options ? options(rank.rank()) : DistributedDataParallelOptions{});
        });
        const std::lock_guard lock(mutex);
        texts[rank.rank()] = error.what();
      },
      kShort);
  REQUIRE(texts.size() == 2);
  REQUIRE(texts[0] == texts[1]);
  return texts[0];
}

void require_in(const std::string& text, const std::vector<std::string>& parts) {
  for (const std::string& part : parts) {
    INFO(text);
    REQUIRE(text.find(part) != std::string::npos);
  }
}

}  // namespace

TEST_CASE("C018: shapes that differ are named on every rank") {
  const auto text = text_on_all(ErrorKind::kMismatch, [](int rank) {
    Bag bag;
    bag->parameter("first", torch::zeros({3}));
    bag->parameter("embedding", torch::zeros({rank == 0 ? 100 : 10000, 500}));
    return bag;
  });
  require_in(text, {"parameter 1", "embedding", "[100, 500]", "[10000, 500]", "rank 0", "rank 1"});
}

TEST_CASE("C018: one parameter more is named on every rank, with both counts") {
  const auto text = text_on_all(ErrorKind::kMismatch, [](int rank) {
    Bag bag;
    bag->parameter("weight", torch::zeros({2, 3}));
    if (rank == 1) bag->parameter("extra", torch::zeros({7}));
    return bag;
  });
  require_in(text, {"missing on rank 0 (which has 1)", "extra [7]", "rank 1 (which has 2)"});
}

TEST_CASE("C018: one frozen parameter is named on every rank") {
  const auto text = text_on_all(ErrorKind::kMismatch, [](int rank) {
    Bag bag;
    bag->parameter("weight", torch::zeros({2, 3}));
    bag->parameter("bias", torch::zeros({3}), rank == 0);
    return bag;
  });
  require_in(text, {"bias [3] float32 on rank 0", "bias [3] float32 frozen on rank 1"});
}

TEST_CASE("names, dtypes, strides, buffers and options that differ are named on every rank") {
  require_in(text_on_all(ErrorKind::kMismatch,
                         [](int rank) {
                           Bag bag;
                           bag->parameter(rank == 0 ? "left" : "right", torch::zeros({3}));
                           return bag;
                         }),
             {"left [3]", "right [3]"});
  require_in(text_on_all(ErrorKind::kMismatch,
                         [](int rank) {
                           Bag bag;
                           bag->parameter(
                               "w", torch::zeros({3}, rank == 0 ? torch::kFloat : torch::kDouble));
                           return bag;
                         }),
             {"float32", "float64"});
  require_in(text_on_all(ErrorKind::kMismatch,
                         [](int rank) {
                           Bag bag;
                           const auto w = torch::zeros({2, 3});
                           bag->parameter("w", rank == 0 ? w : w.t().contiguous().t());
                           return bag;
                         }),
             {"w [2, 3] float32 on rank 0", "strides [1, 2]"});
  require_in(text_on_all(ErrorKind::kMismatch,
                         [](int rank) {
                           Bag bag;
                           bag->parameter("w", torch::zeros({3}));
                           bag->buffer("mean", torch::zeros({rank + 1}));
                           return bag;
                         }),
             {"buffer 0", "mean [1]", "mean [2]"});
  const auto one = [](int) {
    Bag bag;
    bag->parameter("w", torch::zeros({3}));
    return bag;
  };
  require_in(text_on_all(ErrorKind::kMismatch, one,
                         [](int rank) {
                           return DistributedDataParallelOptions{.bucket_cap_mb = rank + 1.0};
                         }),
             {"bucket_cap_mb 1", "bucket_cap_mb 2"});
}

TEST_CASE("what cannot be averaged is refused with its name") {
  const auto refuse = [](const std::function<void(BagImpl&)>& fill) {
    return text_on_all(ErrorKind::kInvalidArgument, [&](int) {
      Bag bag;
      fill(*bag);
      return bag;
    });
  };
  require_in(refuse([](BagImpl& bag) { bag.parameter("w", torch::zeros({3}), false); }),
             {"no parameter that requires a gradient"});
  require_in(refuse([](BagImpl& bag) { bag.buffer("b", torch::zeros({3})); }),
             {"no parameter that requires a gradient"});
  require_in(
      refuse([](BagImpl& bag) { bag.parameter("phase", torch::zeros({3}, torch::kComplexFloat)); }),
      {"phase", "complex64"});
  require_in(refuse([](BagImpl& bag) {
               bag.parameter("w", torch::zeros({3}));
               bag.buffer("wide", torch::zeros({1}).expand({4}));
             }),
             {"wide", "expanded"});
  const auto one = [](int) {
    Bag bag;
    bag->parameter("w", torch::zeros({3}));
    return bag;
  };
  for (const double cap : {0.0, -1.0, std::numeric_limits<double>::quiet_NaN()}) {
    require_in(
        text_on_all(ErrorKind::kInvalidArgument, one,
                    [cap](int) { return DistributedDataParallelOptions{.bucket_cap_mb = cap}; }),
        {"bucket_cap_mb must be above 0"});
  }
}

TEST_CASE("C007: an embedding with sparse gradients is refused with its name") {
  run_ranks(2, [](Rank& rank) {
    torch::nn::Sequential model(
        torch::nn::Embedding(torch::nn::EmbeddingOptions(7, 3).sparse(true)),
        torch::nn::Linear(3, 2));
    check_throws(ErrorKind::kInvalidArgument, "0.weight",
                 [&] { DistributedDataParallel ddp(model, rank.comm_ptr()); });
  });
}

TEST_CASE("an empty holder, a null module and a null communicator are refused") {
  run_ranks(1, [](Rank& rank) {
    check_throws(ErrorKind::kInvalidArgument, "holder is empty",
                 [&] { DistributedDataParallel ddp(OddNet(nullptr), rank.comm_ptr()); });
    check_throws(ErrorKind::kInvalidArgument, "null", [&] {
      DistributedDataParallel ddp(std::shared_ptr<OddNetImpl>(), rank.comm_ptr());
    });
    check_throws(ErrorKind::kInvalidArgument, "null",
                 [&] { DistributedDataParallel ddp(OddNet(), CommunicatorPtr{}); });
  });
}

TEST_CASE("a model is wrapped by one wrapper at a time") {
  run_ranks(2, [](Rank& rank) {
    OddNet model;
    {
      DistributedDataParallel ddp(model, rank.comm_ptr());
      check_throws(ErrorKind::kMisuse, "already belongs to another wrapper",
                   [&] { DistributedDataParallel again(model, rank.comm_ptr()); });
    }
    DistributedDataParallel again(model, rank.comm_ptr(), {.bucket_cap_mb = 25});
    again(batch_of(rank.rank(), 0, 5)).sum().backward();
    check(again.stats().synchronised_backwards == 1, "the first wrapper's hooks are gone");
  });
}

TEST_CASE("rank 0's parameters reach all ranks, of any dtype and layout") {
  run_ranks(3, [](Rank& rank) {
    const auto value = static_cast<double>(rank.rank() + 1);
    Bag bag;
    bag->parameter("matrix", torch::arange(0, 12, torch::kFloat).view({4, 3}) * value)
        .parameter("turned", (torch::arange(0, 12, torch::kDouble).view({3, 4}) * value).t())
        .parameter("half", torch::full({5}, 0.5 * value, torch::kBFloat16))
        .parameter("none", torch::zeros({0, 4}))
        .parameter("scalar", torch::tensor(3.5 * value))
        .parameter("frozen", torch::full({2}, 7 * value), false);
    DistributedDataParallel ddp(bag, rank.comm_ptr());
    const auto named = ddp.module()->named_parameters();
    check_same_bits(named["matrix"], torch::arange(0, 12, torch::kFloat).view({4, 3}), "matrix");
    check_same_bits(named["turned"], torch::arange(0, 12, torch::kDouble).view({3, 4}).t(),
                    "turned");
    check(named["turned"].stride(0) == 1, "strides stay");
    check_same_bits(named["half"], torch::full({5}, 0.5, torch::kBFloat16), "half");
    check_same_bits(named["scalar"], torch::tensor(3.5F), "scalar");
    check_same_bits(named["frozen"], torch::full({2}, 7.0F), "frozen");
  });
}

TEST_CASE("parameters of more bytes than one message reach all ranks") {
  run_ranks(2, [](Rank& rank) {
    Bag bag;
    for (int i = 0; i < 3; ++i) {
      bag->parameter("large_" + std::to_string(i),
                     torch::full({5 << 20}, static_cast<float>(10 * rank.rank() + i)));
      bag->parameter("small_" + std::to_string(i),
                     torch::full({7}, static_cast<float>(10 * rank.rank() - i)));
    }
    DistributedDataParallel ddp(bag, rank.comm_ptr());
    for (int i = 0; i < 3; ++i) {
      const auto named = bag->named_parameters();
      check(named["large_" + std::to_string(i)].eq(i).all().item<bool>(), "large");
      check(named["small_" + std::to_string(i)].eq(-i).all().item<bool>(), "small");
    }
  });
}

TEST_CASE("C011: buffers of any dtype are copied exactly, or left alone") {
  for (const bool copied : {true, false}) {
    run_ranks(2, [&](Rank& rank) {
      const bool first = rank.rank() == 0;
      Bag bag;
      bag->parameter("w", torch::zeros({3}));
      const auto complex = torch::full({1}, c10::complex<float>(1, 2), torch::kComplexFloat);
      const auto truth = torch::ones({1}, torch::kBool);
      const auto large = torch::full({1}, (std::int64_t{1} << 40) + 1, torch::kLong);
      const auto byte = torch::full({1}, 200, torch::kByte);
      const auto mine = [&](const torch::Tensor& value) {
        return first ? value.clone() : torch::zeros_like(value);
      };
      bag->buffer("complex", mine(complex)).buffer("truth", mine(truth));
      bag->buffer("large", mine(large)).buffer("byte", mine(byte));
      DistributedDataParallel ddp(bag, rank.comm_ptr(), {.broadcast_buffers = copied});
      const auto expected = [&](const torch::Tensor& value) {
        return first || copied ? value : torch::zeros_like(value);
      };
      const auto named = bag->named_buffers();
      check_same_bits(torch::view_as_real(named["complex"]), torch::view_as_real(expected(complex)),
                      "complex");
      check_same_bits(named["truth"], expected(truth), "truth");
      check_same_bits(named["large"], expected(large), "large");
      check_same_bits(named["byte"], expected(byte), "byte");
    });
  }
}

TEST_CASE("the comparison of models needs no ranks") {
  const std::vector<ddp::ModelEntry> one = {{"parameter", "a", "[1]"}, {"buffer", "b", "[2]"}};
  std::vector<ddp::ModelEntry> other = one;
  CHECK(ddp::describe_difference({one}).empty());
  CHECK(ddp::describe_difference({one, other, one}).empty());
  other[1].text = "[3]";
  const auto text = ddp::describe_difference({one, one, other});
  CHECK(text.find("buffer 0 is b [2] on rank 0") != std::string::npos);
  CHECK(text.find("b [3] on rank 2") != std::string::npos);
}

TEST_CASE("shard spans name every parameter once, whole and replicated") {
  run_ranks(2, [](Rank& rank) {
    Bag bag;
    const auto shared = torch::ones({2, 3});
    bag->parameter("a", shared).parameter("b", torch::zeros({0, 4}));
    bag->parameter("again", bag->named_parameters()["a"]).parameter("c", torch::zeros({}), false);
    DistributedDataParallel ddp(bag, rank.comm_ptr());
    const auto spans = ddp.shard_spans();
    check_equal(spans.size(), std::size_t{3}, "spans");
    check_equal(spans[0].name, std::string("a"));
    check(spans[0].sizes == std::vector<std::int64_t>({2, 3}) && spans[0].numel == 6, "a");
    check(spans[0].leaf.is_same(bag->named_parameters()["a"]), "the leaf is the parameter");
    check(spans[1].numel == 0 && spans[2].sizes.empty() && spans[2].numel == 1, "b and c");
    for (const auto& span : spans) check(span.begin == 0 && span.replicated, span.name);
  });
}

TEST_CASE("a full state dict goes out of one model and into another") {
  run_ranks(3, [](Rank& rank) {
    const auto fill = [&](float value) {
      Bag bag;
      bag->parameter("w", torch::full({2, 3}, value)).buffer("b", torch::full({2}, value));
      bag->parameter("tied", bag->named_parameters()["w"]);
      return bag;
    };
    Bag source = fill(4.5F);
    DistributedDataParallel from(source, rank.comm_ptr());
    auto state = full_state_dict(from);
    check_equal(state.size(), rank.rank() == 0 ? std::size_t{3} : std::size_t{0}, "entries");
    std::vector<std::string> names;
    for_each_full_parameter(from, [&](const std::string& name, const at::Tensor& full) {
      names.push_back(name);
      check(full.eq(4.5).all().item<bool>(), name);
    });
    check(names == (rank.rank() == 0 ? std::vector<std::string>{"w", "tied"}
                                     : std::vector<std::string>{}),
          "names");

    Bag target = fill(-1.0F);
    DistributedDataParallel to(target, rank.comm_ptr());
    load_full_state_dict(to, state);
    check(target->named_parameters()["w"].eq(4.5).all().item<bool>(), "loaded parameter");
    check(target->named_buffers()["b"].eq(4.5).all().item<bool>(), "loaded buffer");

    if (rank.rank() == 0) state["w"] = torch::zeros({2, 2});
    check_throws(ErrorKind::kInvalidArgument, "w is [2, 2] and the model's is [2, 3]",
                 [&] { load_full_state_dict(to, state); });
    if (rank.rank() == 0) state["w"] = torch::ones({2, 3}).to_sparse();
    check_throws(ErrorKind::kInvalidArgument, "w is a SparseCPUFloatType",
                 [&] { load_full_state_dict(to, state); });
    torch::OrderedDict<std::string, at::Tensor> few;
    check_throws(ErrorKind::kInvalidArgument, "w is missing",
                 [&] { load_full_state_dict(to, few); });
    check(target->named_parameters()["w"].eq(4.5).all().item<bool>(), "unchanged after an error");
  });
}

}  // namespace convoy::test
