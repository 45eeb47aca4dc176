// STAND-IN until the host backend lands: ranks are threads, each operation is a meeting under a lock.
#include <torch/torch.h>
#include <condition_variable>
#include <thread>

#include "convoy/base/check.h"
#include "convoy/comm/run_ranks.h"

namespace convoy {
namespace {

struct Meeting {
  explicit Meeting(int n) : size(n), slots(n) {}
  struct Slot { OpKind kind; std::string tag; std::vector<at::Tensor> in; std::vector<at::Tensor> out; };
  int size; std::mutex mutex; std::condition_variable changed; std::vector<Slot> slots; int arrived = 0; long round = 0;
  std::optional<Error> failure;
  void meet(int rank, Slot slot, Deadline deadline, const std::function<void(std::vector<Slot>&)>& act) {
    std::unique_lock lock(mutex);
    if (failure) throw Error(ErrorKind::kFailed, failure->what(), failure->rank());
    slots[rank] = std::move(slot);
    if (++arrived == size) {
      arrived = 0; ++round;
      for (auto& s : slots) if (s.kind != slots[0].kind || s.tag != slots[0].tag) failure = Error(ErrorKind::kMismatch, concat("ranks disagree: ", to_string(slots[0].kind), " '", slots[0].tag, "' and ", to_string(s.kind), " '", s.tag, "'"));
      if (!failure) act(slots);
      for (auto& s : slots) s = {};
      changed.notify_all();
    } else {
      const auto mine = round;
      if (!changed.wait_until(lock, deadline.point(), [&] { return round != mine || failure; })) { failure = Error(ErrorKind::kTimeout, "timeout in stand-in"); changed.notify_all(); }
    }
    if (failure) throw *failure;
  }
};
struct Done final : Work { bool is_completed() override { return true; } void wait() override {} };
at::Tensor combine(const std::vector<at::Tensor>& in, ReduceOp op) {
  auto wide = in[0].scalar_type() == at::kHalf || in[0].scalar_type() == at::kBFloat16 ? at::kFloat : in[0].scalar_type();
  auto sum = in[0].to(wide, false, true);
  for (size_t i = 1; i < in.size(); ++i) {
    auto v = in[i].to(wide);
    if (op == ReduceOp::kMin) sum = at::minimum(sum, v); else if (op == ReduceOp::kMax) sum = at::maximum(sum, v); else sum.add_(v);
  }
  if (op == ReduceOp::kAvg) sum.div_(static_cast<double>(in.size()));
  return sum;
}
class StandIn final : public Communicator {
 public:
  StandIn(int rank, std::shared_ptr<Meeting> m, CommunicatorOptions o) : Communicator(rank, m->size, std::move(o)), m_(std::move(m)) {}
  bool shares_memory() const noexcept override { return true; }
  void poll() override {}
  void abort(const Error& e) noexcept override { std::lock_guard l(m_->mutex); if (!m_->failure) m_->failure = e; m_->changed.notify_all(); }
  std::optional<Error> failure() const override { std::lock_guard l(m_->mutex); return m_->failure; }
  CommStats stats() const override { return stats_; }
  void reset_stats() override { stats_.clear(); }
 private:
  WorkPtr run(const OpContext& c, std::vector<at::Tensor> in, std::vector<at::Tensor> out, const std::function<void(std::vector<Meeting::Slot>&)>& act) {
    at::NoGradGuard guard;
    auto& s = stats_[c.kind]; ++s.calls; for (auto& t : out) s.payload_bytes += t.nbytes();
    trace::Span span(trace_sink(), to_string(c.kind), "comm", c.tag);
    m_->meet(rank(), {c.kind, c.tag, std::move(in), std::move(out)}, c.deadline, act);
    return std::make_shared<Done>();
  }
  WorkPtr do_all_reduce(const OpContext& c, at::Tensor t, ReduceOp op) override {
    return run(c, {t}, {t}, [op](auto& slots) { std::vector<at::Tensor> in; for (auto& s : slots) in.push_back(s.in[0]); auto r = combine(in, op); for (auto& s : slots) s.out[0].copy_(r); });
  }
  WorkPtr do_reduce_scatter(const OpContext& c, at::Tensor out, at::Tensor in, ReduceOp op) override {
    return run(c, {in}, {out}, [op](auto& slots) { std::vector<at::Tensor> v; for (auto& s : slots) v.push_back(s.in[0].reshape({-1})); auto r = combine(v, op); auto n = r.numel() / (int64_t)slots.size(); for (size_t i = 0; i < slots.size(); ++i) slots[i].out[0].view({-1}).copy_(r.narrow(0, i * n, n)); });
  }
  WorkPtr do_all_gather(const OpContext& c, std::vector<at::Tensor> outs, at::Tensor in) override {
    return run(c, {in}, std::move(outs), [](auto& slots) { for (auto& s : slots) for (size_t r = 0; r < slots.size(); ++r) if (s.out[r].data_ptr() != slots[r].in[0].data_ptr()) s.out[r].view({-1}).copy_(slots[r].in[0].reshape({-1})); });
  }
  WorkPtr do_broadcast(const OpContext& c, at::Tensor t, int root) override {
    return run(c, {t}, {t}, [root](auto& slots) { for (size_t i = 0; i < slots.size(); ++i) if ((int)i != root) slots[i].out[0].copy_(slots[root].in[0]); });
  }
  WorkPtr do_barrier(const OpContext& c) override { return run(c, {}, {}, [](auto&) {}); }
  at::Tensor do_allocate(const OpContext& c, std::int64_t n, at::ScalarType d, bool shared) override {
    at::Tensor mine = at::zeros({n}, d);
    run(c, {mine}, {mine}, [&](auto&) {});
    if (!shared) return mine;
    at::Tensor got;
    static std::mutex mu; static std::map<std::pair<void*, uint64_t>, at::Tensor> shares;
    { std::lock_guard l(mu); auto& s = shares[{m_.get(), c.sequence}]; if (!s.defined()) s = mine; got = s; }
    return got;
  }
  std::shared_ptr<Meeting> m_; CommStats stats_;
};
struct NoSession final : Session {
  std::shared_ptr<Store> s = make_memory_store();
  std::shared_ptr<Store> store() override { return s; }
  void report_failure(const Error&) noexcept override {}
  std::optional<Error> failure() const override { return std::nullopt; }
  std::shared_ptr<void> on_failure(std::function<void()>) override { return nullptr; }
  void mark_operation(std::string_view, std::uint64_t, std::string_view) noexcept override {}
};
}  // namespace

CommunicatorPtr make_communicator(const Job& job, CommunicatorOptions options) {
  CONVOY_REQUIRE(job.world_size() == 1, kInvalidArgument, "stand-in: one process only");
  return std::make_shared<StandIn>(0, std::make_shared<Meeting>(1), std::move(options));
}

void run_ranks(int count, const std::function<void(Rank&)>& body, CommunicatorOptions options) {
  auto meeting = std::make_shared<Meeting>(count);
  auto session = std::make_shared<NoSession>();
  std::vector<std::thread> threads; std::mutex mu; std::exception_ptr first;
  for (int r = 0; r < count; ++r) threads.emplace_back([&, r] {
    try {
      Rank rank(Job({r, count, r, count}, "test", 0, session), std::make_shared<StandIn>(r, meeting, options));
      body(rank);
    } catch (const std::exception& e) {
      { std::lock_guard l(mu); if (!first) first = std::current_exception(); }
      std::lock_guard l(meeting->mutex);
      if (!meeting->failure) meeting->failure = Error(ErrorKind::kPeerLost, concat("rank ", r, " failed: ", e.what()), r);
      meeting->changed.notify_all();
    }
  });
  for (auto& t : threads) t.join();
  if (first) std::rethrow_exception(first);
}

}  // namespace convoy
