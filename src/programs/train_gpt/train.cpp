// Puts the parts together.
#include "programs/train_gpt/train.h"

#include "convoy/base/check.h"
#include "convoy/checkpoint/first_rank.h"
#include "convoy/comm/factory.h"
#include "convoy/data/prefetch.h"
#include "convoy/optim/adamw.h"
#include "convoy/optim/decay_groups.h"
#include "convoy/optim/warmup_cosine.h"
#include "convoy/profile/overlap.h"
#include "programs/train_gpt/checkpoints.h"
#include "programs/train_gpt/console.h"
#include "programs/train_gpt/generate.h"
#include "programs/train_gpt/totals.h"
#include "programs/train_gpt/tracing.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <optional>

namespace convoy::train_gpt {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The text and how it is used. Found before the ranks meet, so that bad input costs no waiting.
struct TrainingData {
  TrainingData(const Options& options, int world)
      : text(data::Text::open(options.data)),
        split(text.size(), options.config.seq + 1, options.eval_windows),
        order(split.train_bytes(), options.config.seq, options.seed),
        windows(text, split, order),
        batches(data::plan_batch(options.global_batch.value_or(options.micro_batch * world),
                                 options.micro_batch, world)),
        evaluation(data::plan_evaluation(split.validation_windows(), options.micro_batch, world)),
        unigram_nats(windows.validation_unigram_nats()) {}
  TrainingData(const TrainingData&) = delete;
  TrainingData& operator=(const TrainingData&) = delete;

  data::Text text;
  data::TextSplit split;
  data::WindowOrder order;
  data::TokenWindows windows;
  data::BatchPlan batches;
  data::EvaluationPlan evaluation;
  double unigram_nats;
};

GPT make_model(const Options& options) {
  GPT model(options.config, options.seed);
  if (options.checkpoint) checkpoint_units(model, wrap_units_of<Block>());
  return model;
}

optim::AdamW make_optimizer(Strategy& strategy, const Options& options) {
  return optim::AdamW(optim::decay_groups(strategy.spans(), options.weight_decay),
                      optim::AdamWOptions{.lr = options.lr, .betas = {0.9, 0.95}});
}

/// Ranks that see different text would train something that no one asked for.
void compare_data(const data::Text& text, Communicator& comm) {
  const auto hash = static_cast<std::int64_t>(text.fingerprint());
  auto all = at::empty({comm.size(), 2}, at::kLong);
  comm.all_gather(all, at::tensor({text.size(), hash}, at::kLong), {.tag = "data"})->wait();
  const auto* facts = all.const_data_ptr<std::int64_t>();
  for (int rank = 1; rank < comm.size(); ++rank) {
    const auto* mine = facts + std::ptrdiff_t{2} * rank;
    CONVOY_REQUIRE(mine[0] == facts[0], kMismatch, "the ranks see different data: --data has ",
                   facts[0], " bytes on rank 0 and ", mine[0], " on rank ", rank);
    CONVOY_REQUIRE(mine[1] == facts[1], kMismatch, "the ranks see different data: --data of rank ",
                   rank, " has as many bytes as that of rank 0, ", mine[0], ", but other ones");
  }
}

std::string hex(std::uint64_t value) {
  std::array<char, 17> text{};
  std::snprintf(text.data(), text.size(), "%016llx", static_cast<unsigned long long>(value));
  return text.data();
}

/// One run of one rank, as an object so that its phases can share what they need.
class Run {
 public:
  Run(const Job& job, const Options& options, profile::AllocationCounter& allocations,
      EventLog& log, Tracing& tracing)
      : options_(options),
        kind_(options.strategy.value_or(job.world_size() == 1 ? StrategyKind::kSingle
                                                              : StrategyKind::kDdp)),
        log_(log),
        data_(options, job.world_size()),
        tracing_(tracing),
        overlap_(std::make_shared<profile::OverlapMeter>()),
        comm_(make_communicator(job,
                                {.timeout = options.timeout, .trace = tracing.beside(overlap_)})),
        strategy_(make_strategy(kind_, make_model(options), comm_, options)),
        optimizer_(make_optimizer(*strategy_, options)),
        schedule_(optimizer_, {.warmup_steps = options.warmup_steps,
                               .total_steps = std::max<std::int64_t>(1, options.steps),
                               .min_lr = options.min_lr}),
        stepper_(*strategy_, *comm_, optimizer_, allocations, *overlap_, data_.batches,
                 options.clip, tracing.sink()),
        console_(comm_->rank() == 0, options.steps) {}

  void run() {
    compare_data(data_.text, *comm_);
    saving::on_first_rank(comm_.get(), [this] { data_xxh3_ = hex(data_.text.xxh3()); });
    Checkpoints checkpoints(options_, identity(), data_.batches.global_batch, *comm_);
    const TrainState resumed = checkpoints.resume(*strategy_, optimizer_);
    loss_ = resumed.loss;
    schedule_.jump_to(resumed.step);
    start(resumed);
    train(resumed.step, checkpoints);
    end(checkpoints);
  }

 private:
  bool speaks() const { return comm_->rank() == 0; }

  TrainingIdentity identity() const {
    const ModelConfig& model = options_.config;
    return {{"layers", std::to_string(model.layers)},
            {"dim", std::to_string(model.dim)},
            {"heads", std::to_string(model.heads)},
            {"seq", std::to_string(model.seq)},
            {"vocab", std::to_string(model.vocab)},
            {"tie-embeddings", model.tie_embeddings ? "true" : "false"},
            {"global-batch", std::to_string(data_.batches.global_batch)},
            {"seed", std::to_string(options_.seed)},
            {"eval-windows", std::to_string(data_.split.validation_windows())},
            {"data-bytes", std::to_string(data_.text.size())},
            {"data-xxh3", json_text(data_xxh3_)}};
  }

  void train(std::int64_t done, Checkpoints& checkpoints) {
    data::Prefetcher<data::TokenBatch> loader(
        [this, done](std::int64_t index) {
          return data_.windows.train(data_.batches.first_window(done + index + 1, comm_->rank()),
                                     data_.batches.rows_per_rank);
        },
        options_.steps - done);
    for (std::int64_t step = done + 1; step <= options_.steps; ++step) {
      train_step(step, loader);
      if (options_.eval_every > 0 && step % options_.eval_every == 0 && step < options_.steps) {
        validate(step);
      }
      if (step < options_.steps && checkpoints.is_due(step)) save(step, checkpoints);
    }
  }

  void save(std::int64_t step, Checkpoints& checkpoints) {
    const trace::Span span(tracing_.sink(), "save", "checkpoint", std::to_string(step));
    const std::string path = checkpoints.save({step, loss_}, *strategy_, optimizer_);
    if (speaks()) log_.write(save_event(step, path));
    console_.line(concat("saved ", path));
  }

  void start(const TrainState& resumed) {
    begin_ = Clock::now();
    if (!speaks()) return;
    const StartFacts facts{.strategy = kind_,
                           .world = comm_->size(),
                           .threads = at::get_num_threads(),
                           .parameters = parameter_count(options_.config),
                           .plan = data_.batches,
                           .data_paths = options_.data,
                           .data_bytes = data_.text.size(),
                           .data_xxh3 = data_xxh3_,
                           .validation_windows = data_.split.validation_windows(),
                           .unigram_nats = data_.unigram_nats};
    log_.write(start_event(facts, options_));
    console_.start(facts, options_);
    for (const std::string& flag : flags_without_effect(options_, kind_)) {
      console_.line(concat("note: ", flag, " has no effect with --strategy ", to_string(kind_)));
    }
    console_.line("memory of a rank without activations, predicted: " +
                  to_string(strategy_->memory_plan()));
    if (!options_.resume.empty()) {
      console_.line(concat("resumed '", options_.resume, "' after step ", resumed.step));
    }
  }

  data::TokenBatch next_batch(data::Prefetcher<data::TokenBatch>& loader) {
    const trace::Span span(tracing_.sink(), "data", "data");
    return loader.next(Deadline::after(options_.timeout));
  }

  void train_step(std::int64_t step, data::Prefetcher<data::TokenBatch>& loader) {
    const trace::Span span(tracing_.sink(), "step", "step", std::to_string(step));
    const auto asked = Clock::now();
    const data::TokenBatch batch = next_batch(loader);
    const double data_s = seconds_since(asked);
    const double lr = schedule_.lr();
    const StepResult result = stepper_.run(batch);
    schedule_.step();
    totals_.add(result);
    auto loss = at::full({1}, result.loss, at::kDouble);
    comm_->all_reduce(loss, ReduceOp::kAvg, {.tag = "loss"})->wait();
    loss_ = static_cast<float>(loss.item<double>());
    double comm_wait_s = 0;
    for (const auto& [operation, stats] : result.comm) comm_wait_s += stats.wait_s;
    const StepFacts facts{.step = step,
                          .loss = loss_,
                          .lr = lr,
                          .grad_norm = result.grad_norm,
                          .step_s = result.step_s,
                          .optimizer_s = result.optimizer_s,
                          .data_s = data_s,
                          .comm_wait_s = comm_wait_s,
                          .optimizer_wait_s = result.optimizer_wait_s,
                          .tokens = data_.batches.global_batch * options_.config.seq};
    if (speaks()) log_.write(step_event(facts));
    console_.step(facts);
  }

  Evaluation validate(std::int64_t step) {
    const trace::Span span(tracing_.sink(), "evaluation", "evaluation");
    const Evaluation evaluation = evaluate(*strategy_, *comm_, data_.windows, data_.evaluation);
    if (speaks()) log_.write(eval_event(step, evaluation));
    console_.evaluation(step, evaluation, data_.unigram_nats);
    return evaluation;
  }

  void end(Checkpoints& checkpoints) {
    // Before what follows can raise the peak.
    const auto memory = gather_memory(totals_.memory(*strategy_, optimizer_), *comm_);
    if (checkpoints.is_due(options_.steps)) save(options_.steps, checkpoints);
    const Evaluation evaluation = validate(options_.steps);
    const std::string hash = parameters_xxh3(*strategy_);
    const auto comm_means = mean_comm(totals_, *comm_);
    if (options_.sample > 0) {
      const auto text = generate(*strategy_, options_.prompt, options_.sample, options_.seed);
      console_.sample(options_.prompt, text);
    }
    tracing_.save(*comm_);
    if (!speaks()) return;
    log_.write(end_event({.step = options_.steps,
                          .loss = loss_,
                          .validation_loss = evaluation.loss,
                          .params_xxh3 = hash,
                          .comm = comm_means,
                          .overlap_share = overlap_->share(),
                          .memory = memory,
                          .seconds = seconds_since(begin_)}));
    console_.line(concat("activations: at most ", grouped(memory.front().activations_peak),
                         " bytes in a forward of rank 0",
                         options_.checkpoint ? ", with checkpointed blocks" : ""));
    console_.line(
        concat("done in ", clock_text(seconds_since(begin_)), "; parameters xxh3 ", hash));
  }

  const Options& options_;
  StrategyKind kind_;
  EventLog& log_;
  TrainingData data_;
  Tracing& tracing_;
  std::shared_ptr<profile::OverlapMeter> overlap_;
  CommunicatorPtr comm_;
  std::unique_ptr<Strategy> strategy_;
  optim::AdamW optimizer_;
  WarmupCosine schedule_;
  Stepper stepper_;
  Console console_;
  Totals totals_;
  Clock::time_point begin_;
  float loss_ = 0;
  std::string data_xxh3_;  ///< On rank 0.
};

}  // namespace

void train(const Job& job, const Options& options, profile::AllocationCounter& allocations,
           EventLog& log) {
  CONVOY_REQUIRE(options.strategy != StrategyKind::kSingle || job.world_size() == 1,
                 kInvalidArgument, "--strategy single is one process, but ", job.world_size(),
                 " ranks were started; use ddp or fsdp");
  if (options.threads) at::set_num_threads(*options.threads);
  Tracing tracing(options.trace, job.rank(), job.world_size());
  try {
    Run(job, options, allocations, log, tracing).run();
  } catch (...) {
    tracing.leave_part();
    throw;
  }
}

}  // namespace convoy::train_gpt
