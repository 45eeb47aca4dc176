// Field by field.
#include "programs/train_gpt/events.h"

#include "convoy/base/parse.h"
#include "convoy/version.h"

#include <torch/version.h>

namespace convoy::train_gpt {
namespace {

constexpr int kSchema = 1;

/// A JSON array of objects or texts that are JSON already.
template <class Items, class ToJson>
std::string array_of(const Items& items, const ToJson& to_json) {
  std::string text = "[";
  for (const auto& item : items) {
    if (text.size() > 1) text += ',';
    text += to_json(item);
  }
  return text + "]";
}

JsonLine config_of(const StartFacts& facts, const Options& options) {
  const ModelConfig& model = options.config;
  JsonLine config;
  config.add("model", options.model)
      .add("layers", model.layers)
      .add("dim", model.dim)
      .add("heads", model.heads)
      .add("seq", model.seq)
      .add("vocab", model.vocab)
      .add("tie-embeddings", model.tie_embeddings)
      .add("global-batch", facts.plan.global_batch)
      .add("micro-batch", facts.plan.micro_batch)
      .add("steps", options.steps)
      .add("lr", options.lr)
      .add("min-lr", options.min_lr)
      .add("warmup-steps", options.warmup_steps)
      .add("weight-decay", options.weight_decay)
      .add("clip", options.clip)
      .add("dtype", to_string(model.dtype))
      .add("checkpoint", options.checkpoint)
      .add("seed", options.seed)
      .add("threads", facts.threads)
      .add("bucket-mb", options.bucket_mb)
      .add("no-reshard-after-forward", !options.reshard_after_forward)
      .add("no-shared-gather", !options.shared_gather)
      .add("eval-every", options.eval_every)
      .add("eval-windows", options.eval_windows)
      .add("sample", options.sample)
      .add("prompt", options.prompt)
      .add("save", options.save)
      .add("save-every", options.save_every)
      .add("resume", options.resume)
      .add("timeout", format_duration(options.timeout));
  return config;
}

JsonLine memory_of(const profile::MemoryReport& report) {
  JsonLine memory;
  memory.add("rss_peak", report.process.rss_peak)
      .add("pss", report.process.pss)
      .add("parameters", report.parameters)
      .add("gradients", report.gradients)
      .add("optimizer", report.optimizer)
      .add("buffers", report.buffers)
      .add("activations_peak", report.activations_peak)
      .add("other", report.other())
      .add("rss", report.process.rss)
      .add("mapped_files", report.process.files)
      .add("shared", report.process.shared);
  return memory;
}

JsonLine comm_of(const std::vector<MeanOpStats>& operations) {
  JsonLine comm;
  for (const MeanOpStats& stats : operations) {
    JsonLine operation;
    operation.add("calls", stats.calls)
        .add("payload_bytes", stats.payload_bytes)
        .add("copied_bytes", stats.copied_bytes)
        .add("wire_bytes", stats.wire_bytes)
        .add("wait_s", stats.wait_s);
    comm.add(to_string(stats.kind), operation);
  }
  return comm;
}

}  // namespace

JsonLine start_event(const StartFacts& facts, const Options& options) {
  JsonLine data;
  data.raw("paths", array_of(facts.data_paths, [](const auto& path) { return json_text(path); }))
      .add("bytes", facts.data_bytes)
      .add("xxh3", facts.data_xxh3)
      .add("unigram_nats", facts.unigram_nats)
      .add("validation_windows", facts.validation_windows);
  const BuildInfo build = build_info();
  JsonLine convoy;
  convoy.add("version", build.version)
      .add("commit", build.commit)
      .add("build_type", build.build_type);
  JsonLine event;
  event.add("event", "start")
      .add("schema", kSchema)
      .add("strategy", to_string(facts.strategy))
      .add("world", facts.world)
      .add("threads", facts.threads)
      .add("parameters", facts.parameters)
      .add("config", config_of(facts, options))
      .add("data", data)
      .add("convoy", convoy)
      .add("libtorch", TORCH_VERSION);
  return event;
}

JsonLine step_event(const StepFacts& facts) {
  JsonLine event;
  event.add("event", "step")
      .add("step", facts.step)
      .add("loss", facts.loss)
      .add("lr", facts.lr)
      .add("grad_norm", facts.grad_norm)
      .add("step_s", facts.step_s)
      .add("optimizer_s", facts.optimizer_s)
      .add("data_s", facts.data_s)
      .add("comm_wait_s", facts.comm_wait_s)
      .add("optimizer_wait_s", facts.optimizer_wait_s)
      .add("tokens", facts.tokens)
      .add("tokens_per_s", static_cast<double>(facts.tokens) / facts.step_s);
  return event;
}

JsonLine eval_event(std::int64_t step, const Evaluation& evaluation) {
  JsonLine event;
  event.add("event", "eval")
      .add("step", step)
      .add("loss", evaluation.loss)
      .add("windows", evaluation.windows);
  return event;
}

JsonLine save_event(std::int64_t step, std::string_view path) {
  JsonLine event;
  event.add("event", "save").add("step", step).add("path", path);
  return event;
}

JsonLine end_event(const EndFacts& facts) {
  JsonLine event;
  event.add("event", "end")
      .add("step", facts.step)
      .add("loss", facts.loss)
      .add("validation_loss", facts.validation_loss)
      .add("params_xxh3", facts.params_xxh3)
      .add("comm", comm_of(facts.comm))
      .add("overlap_share", facts.overlap_share)
      .raw("memory",
           array_of(facts.memory, [](const auto& report) { return memory_of(report).text(); }))
      .add("seconds", facts.seconds);
  return event;
}

JsonLine error_event(int rank, std::string_view kind, std::string_view message) {
  JsonLine event;
  event.add("event", "error").add("rank", rank).add("kind", kind).add("message", message);
  return event;
}

}  // namespace convoy::train_gpt
