// What the control server does with each message.
#include "convoy/control/control_server.h"

#include "control/control_server_impl.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <limits>
#include <utility>

#include <unistd.h>

namespace convoy {
namespace {

constexpr std::size_t kShownKeys = 16;

std::vector<std::int64_t> widen(const std::vector<int>& ranks) {
  return {ranks.begin(), ranks.end()};
}

// Why this hello does not fit this job, naming both sides; empty if it does.
std::string misfit(const Hello& hello, const ControlServerOptions& options) {
  if (hello.version != kProtocolVersion) {
    return concat("the launcher speaks version ", kProtocolVersion,
                  " of the control protocol, the rank version ", hello.version,
                  ": both must be built from the same Convoy");
  }
  if (hello.run_id != options.run_id) {
    return concat("the launcher serves run '", options.run_id, "', the rank belongs to run '",
                  hello.run_id, "'");
  }
  if (hello.generation != options.generation) {
    return concat("the launcher serves generation ", options.generation, " of run '",
                  options.run_id, "', the rank belongs to generation ", hello.generation);
  }
  if (hello.world_size != options.world_size) {
    return concat("the launcher started a world of ", options.world_size, ", rank ", hello.rank,
                  " expects a world of ", hello.world_size);
  }
  if (hello.rank < 0 || hello.rank >= options.world_size) {
    return concat("rank ", hello.rank, " is outside of the world of ", options.world_size);
  }
  return {};
}

}  // namespace

ControlServerOptions::ControlServerOptions() : user(::geteuid()) {}

void ControlServer::Impl::dispatch(ClientId id, Client& client, const Frame& frame) {
  switch (client.connection.state()) {
    case ConnectionState::kGreeting: greet(id, client, frame); return;
    case ConnectionState::kRank: dispatch_rank(id, client, frame); return;
    case ConnectionState::kReporter:
      CONVOY_REQUIRE(frame.type == FrameType::kReport, kProtocol, "an unexpected message of type ",
                     static_cast<int>(frame.type), " from a reporter");
      client.connection.become_leaving();
      greeting_.erase(id);
      take_report(id, client.connection.rank(), frame);
      return;
    case ConnectionState::kLeaving:
      throw Error(ErrorKind::kProtocol, "a message after the last one");
  }
}

void ControlServer::Impl::greet(ClientId id, Client& client, const Frame& frame) {
  CONVOY_REQUIRE(frame.type == FrameType::kHello, kProtocol, "a message of type ",
                 static_cast<int>(frame.type), " before the hello");
  const auto hello = Hello::decode(frame.payload);
  const auto reason = misfit(hello, options_);
  if (!reason.empty()) {
    refuse(id, ErrorKind::kMismatch, reason);
    return;
  }
  const auto rank = static_cast<int>(hello.rank);
  if (hello.role == ClientRole::kReporter) {
    client.connection.become_reporter(rank);  // It counts as half-open until its report is here.
    send(id, FrameType::kWelcome, 0, {});
    return;
  }
  const auto objection = membership_.objection(rank, client.connection.pid());
  if (!objection.empty()) {
    refuse(id, ErrorKind::kMismatch, objection);
    return;
  }
  welcome_rank(id, client, rank);
}

void ControlServer::Impl::welcome_rank(ClientId id, Client& client, int rank) {
  client.connection.become_rank(rank);
  greeting_.erase(id);
  const bool was_gone = membership_.at(rank).is_gone();
  membership_.join(rank, client.connection.pid());
  send(id, FrameType::kWelcome, 0, {}, page_.fd());
  for (const int gone : membership_.gone()) {
    send(id, FrameType::kMembership, 0, MembershipMessage{gone, true}.encode());
  }
  if (failure_) send(id, FrameType::kFailure, 0, encode_error(*failure_));
  if (was_gone) broadcast(FrameType::kMembership, MembershipMessage{rank, false}.encode());
  if (events_.on_hello) events_.on_hello(rank, client.connection.pid());
}

void ControlServer::Impl::dispatch_rank(ClientId id, Client& client, const Frame& frame) {
  const RequestId request{id, frame.request};
  if (StoreService::serves(frame.type)) {
    store_.serve(request, frame);
    return;
  }
  const int rank = client.connection.rank();
  switch (frame.type) {
    case FrameType::kCancel: cancel(request); return;
    case FrameType::kReport:
      CONVOY_REQUIRE(frame.request == 0, kProtocol, "a session that asks who prints");
      take_report(id, rank, frame);
      return;
    case FrameType::kGoodbye: take_goodbye(id, client, frame); return;
    case FrameType::kFinish:
      membership_.finish(rank);
      finishers_.insert(request);
      return;
    default:
      throw Error(ErrorKind::kProtocol, concat("an unexpected message of type ",
                                               static_cast<int>(frame.type), " from rank ", rank));
  }
}

void ControlServer::Impl::cancel(RequestId request) {
  auto facts = membership_facts();
  if (finishers_.erase(request) > 0) {
    facts.not_finished = widen(membership_.unfinished());
    answer(request, Reply::not_fulfilled(std::move(facts)));
    return;
  }
  const auto keys = store_.cancel(request);
  if (!keys) return;  // Answered while the cancel was on its way.
  facts.key_count = static_cast<std::uint32_t>(keys->size());
  for (const auto& key : *keys) {
    if (facts.keys.size() == kShownKeys) break;
    facts.keys.push_back(key);
  }
  answer(request, Reply::not_fulfilled(std::move(facts)));
}

Unfulfilled ControlServer::Impl::membership_facts() const {
  Unfulfilled facts;
  facts.not_joined = widen(membership_.never_joined());
  facts.left = widen(membership_.gone());
  return facts;
}

void ControlServer::Impl::answer(RequestId request, const Reply& reply) {
  send(request.connection, FrameType::kReply, request.number, reply.encode());
}

void ControlServer::Impl::take_report(ClientId id, int rank, const Frame& frame) {
  auto report = ReportMessage::decode(frame.payload).report;
  report.reporter = rank;
  if (report.about >= options_.world_size || report.about < -1) report.about = -1;
  if (frame.request != 0) {
    if (!verdicts_.is_waiting()) {
      verdict_due_ = Deadline::after(options_.report_grace);
      verdict_overdue_ = Deadline::after(2 * options_.report_grace);
    }
    verdicts_.add({id, frame.request}, rank, report.text);
  }
  // One report is kept for each rank: the first, unless that was a consequence and this is a cause.
  const auto earlier = std::find_if(reports_.begin(), reports_.end(),
                                    [&](const auto& r) { return r.reporter == rank; });
  if (earlier == reports_.end()) {
    reports_.push_back(report);
  } else if (is_consequence(*earlier) && !is_consequence(report)) {
    *earlier = report;
  } else {
    return;
  }
  abort(as_seen_by_peers(report));
  if (events_.on_report) events_.on_report(report);
}

void ControlServer::Impl::take_goodbye(ClientId id, Client& client, const Frame& frame) {
  FieldReader reader(frame.payload);
  const bool is_unwinding = reader.u32() != 0;
  reader.finish();
  const int rank = client.connection.rank();
  client.connection.become_leaving();
  store_.drop(id);
  answer({id, frame.request}, Reply::ok());
  depart(rank, is_unwinding ? Departure::kUnwinding : Departure::kFinished);
}

void ControlServer::Impl::depart(int rank, Departure how) {
  // A process that has been seen to exit is gone already, in this list and for the others.
  if (membership_.at(rank).state == MemberState::kJoined) {
    membership_.leave(rank, how == Departure::kUnwinding);
    broadcast(FrameType::kMembership, MembershipMessage{rank, true}.encode());
  }
  if (events_.on_departure) events_.on_departure(rank, how);
}

void ControlServer::Impl::abort(const Error& failure) {
  if (failure_) return;
  failure_ = failure;
  broadcast(FrameType::kFailure, encode_error(failure));
}

void ControlServer::Impl::mark_exited(int rank) {
  CONVOY_REQUIRE(rank >= 0 && rank < options_.world_size, kInvalidArgument, "rank ", rank,
                 " is outside of the world of ", options_.world_size);
  const bool was_gone = membership_.at(rank).is_gone();
  membership_.exit(rank);
  if (!was_gone) broadcast(FrameType::kMembership, MembershipMessage{rank, true}.encode());
  if (!is_processing_) settle();
}

void ControlServer::Impl::answer_finishers() {
  if (finishers_.empty() || !membership_.unfinished().empty()) return;
  for (const auto request : std::exchange(finishers_, {})) answer(request, Reply::ok());
}

bool ControlServer::Impl::are_reports_complete() const {
  for (int rank = 0; rank < options_.world_size; ++rank) {
    const auto& member = membership_.at(rank);
    const bool is_settled = member.is_gone() && !member.may_report;
    if (!is_settled && !verdicts_.has_reported(rank)) return false;
  }
  return true;
}

void ControlServer::Impl::answer_verdicts() {
  if (!verdicts_.is_waiting()) return;
  const bool is_complete = are_reports_complete() || verdict_due_->expired();
  for (const auto& [request, prints] : verdicts_.decide(is_complete, verdict_overdue_->expired())) {
    answer(request, Reply::ok(prints ? "print" : "quiet"));
  }
}

std::vector<int> ControlServer::Impl::waiting_ranks() const {
  std::vector<int> ranks;
  for (const auto& [id, client] : clients_) {
    if (client.connection.state() != ConnectionState::kRank) continue;
    const auto first = finishers_.lower_bound({id, 0});
    const bool is_finishing = first != finishers_.end() && first->connection == id;
    if (is_finishing || store_.is_waiting(id)) ranks.push_back(client.connection.rank());
  }
  std::sort(ranks.begin(), ranks.end());
  return ranks;
}

ControlServer::ControlServer(ControlServerOptions options, ControlServerEvents events) {
  CONVOY_REQUIRE(options.world_size > 0, kInvalidArgument, "a world of ", options.world_size,
                 " ranks");
  impl_ = std::make_unique<Impl>(std::move(options), std::move(events));
}
ControlServer::~ControlServer() = default;

const std::string& ControlServer::address() const noexcept { return impl_->address(); }
int ControlServer::epoll_fd() const noexcept { return impl_->epoll_fd(); }
void ControlServer::process() { impl_->process(); }
void ControlServer::abort(const Error& failure) { impl_->abort(failure); }
void ControlServer::mark_exited(int rank) { impl_->mark_exited(rank); }
const std::optional<Error>& ControlServer::failure() const noexcept { return impl_->failure(); }
const std::vector<FailureReport>& ControlServer::reports() const noexcept {
  return impl_->reports();
}
std::vector<int> ControlServer::missing_ranks() const { return impl_->membership().never_joined(); }
std::vector<int> ControlServer::left_ranks() const { return impl_->membership().gone(); }
std::vector<int> ControlServer::waiting_ranks() const { return impl_->waiting_ranks(); }
const JobPage& ControlServer::page() const noexcept { return impl_->page(); }

}  // namespace convoy
