// The network: sizes, forward, first weights; and the text it writes.
#include "convoy/base/error.h"
#include "convoy/comm/factory.h"
#include "programs/train_gpt/generate.h"
#include "programs/train_gpt/gpt.h"
#include "support/catch.h"

#include <torch/torch.h>

using namespace convoy::train_gpt;

namespace {

std::int64_t counted(GPT& model) {
  std::int64_t count = 0;
  for (const auto& parameter : model->parameters()) count += parameter.numel();
  return count;
}

constexpr ModelConfig kSmallest{.layers = 2, .dim = 16, .heads = 2, .seq = 8, .vocab = 256};

}  // namespace

TEST_CASE("models: the named ones have their known numbers of parameters") {
  REQUIRE(parameter_count(named_model("small").config) == 10'942'464);
  REQUIRE(parameter_count(named_model("base").config) == 57'196'032);
  REQUIRE(parameter_count(named_model("gpt2-124m").config) == 124'475'904);
  const ModelConfig& tiny = named_model("tiny").config;
  REQUIRE(tiny.layers == 4);
  REQUIRE(tiny.dim == 128);
  REQUIRE(tiny.heads == 4);
  REQUIRE(tiny.seq == 64);
  REQUIRE(parameter_count(tiny) == 867'072);
}

TEST_CASE("models: the count is what the modules hold") {
  for (const char* name : {"tiny", "small"}) {
    GPT model(named_model(name).config, 1);
    REQUIRE(counted(model) == parameter_count(named_model(name).config));
  }
  ModelConfig tied = kSmallest;
  tied.tie_embeddings = true;
  GPT model(tied, 1);
  REQUIRE(counted(model) == parameter_count(tied));
  REQUIRE(parameter_count(tied) == parameter_count(kSmallest) - 256 * 16);
}

TEST_CASE("gpt: names are those of the module tree, in registration order") {
  GPT model(kSmallest, 1);
  std::vector<std::string> names;
  for (const auto& item : model->named_parameters()) names.push_back(item.key());
  REQUIRE(names.size() == 2 + 2 * 12 + 2 + 1);
  REQUIRE(names[0] == "tok.weight");
  REQUIRE(names[1] == "pos.weight");
  REQUIRE(names[2] == "blocks.0.ln1.weight");
  REQUIRE(names[6] == "blocks.0.qkv.weight");
  REQUIRE(names.back() == "head.weight");
}

TEST_CASE("gpt: a token sees those before it and none after it") {
  GPT model(kSmallest, 3);
  at::NoGradGuard no_grad;
  const auto tokens = at::arange(16, at::kLong).view({2, 8});
  const auto logits = model(tokens);
  REQUIRE(logits.sizes() == at::IntArrayRef({2, 8, 256}));
  auto changed = tokens.clone();
  changed[0][5] = 200;
  const auto other = model(changed);
  REQUIRE(at::allclose(logits[0].narrow(0, 0, 5), other[0].narrow(0, 0, 5), 1e-5, 1e-6));
  for (std::int64_t at = 5; at < 8; ++at) {
    REQUIRE_FALSE(at::allclose(logits[0][at], other[0][at], 1e-5, 1e-6));
  }
  REQUIRE(at::equal(logits[1], other[1]));
  REQUIRE_THROWS_AS(model(at::zeros({1, 9}, at::kLong)), convoy::Error);
}

TEST_CASE("gpt: first weights come from the seed alone") {
  torch::manual_seed(1);
  GPT one(kSmallest, 5);
  torch::manual_seed(2);
  GPT two(kSmallest, 5);
  GPT other(kSmallest, 6);
  const auto first = one->parameters();
  for (std::size_t i = 0; i < first.size(); ++i) {
    REQUIRE(at::equal(first[i], two->parameters()[i]));
  }
  REQUIRE_FALSE(at::equal(one->tok->weight, other->tok->weight));
  REQUIRE(one->tok->weight.std().item<double>() == Approx(0.02).epsilon(0.1));
  REQUIRE(one->blocks[0]->down->weight.std().item<double>() == Approx(0.01).epsilon(0.1));
  REQUIRE(one->blocks[1]->ln2->weight.min().item<float>() == 1);
  REQUIRE(one->blocks[1]->qkv->bias.abs().max().item<float>() == 0);
}

TEST_CASE("gpt: a tied head trains the embedding from both ends") {
  ModelConfig tied = kSmallest;
  tied.tie_embeddings = true;
  GPT model(tied, 1);
  model(at::zeros({1, 1}, at::kLong)).sum().backward();
  const auto gradient = model->tok->weight.grad();
  REQUIRE(gradient[0].abs().sum().item<float>() > 0);
  REQUIRE(gradient[200].abs().sum().item<float>() > 0);  // Reached through the head only.
}

TEST_CASE("models: impossible sizes and unknown names are refused by flag") {
  const auto refused = [](const ModelConfig& config, const std::string& text) {
    try {
      check_model(config);
    } catch (const convoy::Error& error) {
      return std::string(error.what()).find(text) != std::string::npos;
    }
    return false;
  };
  ModelConfig config = kSmallest;
  config.heads = 3;
  REQUIRE(refused(config, "--dim 16 does not divide into 3 heads"));
  config = kSmallest;
  config.vocab = 255;
  REQUIRE(refused(config, "--vocab 255"));
  config = kSmallest;
  config.layers = 0;
  REQUIRE(refused(config, "--layers"));
  try {
    named_model("smal");
    FAIL("an unknown model was found");
  } catch (const convoy::Error& error) {
    REQUIRE(std::string(error.what()).find("did you mean 'small'?") != std::string::npos);
  }
}

TEST_CASE("generate: a prompt goes on, the same for the same seed, longer than the context") {
  const auto strategy = make_strategy(StrategyKind::kSingle, GPT(kSmallest, 1),
                                      convoy::make_communicator(convoy::Job::alone()), {});
  const std::string text = generate(*strategy, "to be or not", 20, 7);
  REQUIRE(text.size() == 20);
  REQUIRE(generate(*strategy, "to be or not", 20, 7) == text);
  REQUIRE(generate(*strategy, "to be or not", 20, 8) != text);
  REQUIRE(generate(*strategy, "to be or not", 0, 7).empty());
}

TEST_CASE("printable: text stays, what would upset a terminal becomes a dot") {
  REQUIRE(printable("a\tb\n") == "a\tb\n");
  REQUIRE(printable("caf\xc3\xa9 \xf0\x9f\x98\x80") == "caf\xc3\xa9 \xf0\x9f\x98\x80");
  REQUIRE(printable(std::string_view("\x1b[2J\0\x7f\xff\xc3", 8)) == ".[2J....");
  REQUIRE(printable("").empty());
}
