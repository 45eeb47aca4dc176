// The parts of the control server and how they hang together.
#pragma once

#include "control/connection.h"
#include "control/membership.h"
#include "control/messages.h"
#include "control/poller.h"
#include "control/store_service.h"
#include "control/verdict_board.h"
#include "convoy/control/channel.h"
#include "convoy/control/control_server.h"

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

namespace convoy {

// Connections have numbers that are never used again, so that a late answer cannot reach a
// stranger. A connection is closed in one place only, close_doomed(): handlers may be deep in a
// loop over connections when they find that one must go.
class ControlServer::Impl {
 public:
  Impl(ControlServerOptions options, ControlServerEvents events);

  void process();
  void abort(const Error& failure);
  void mark_exited(int rank);

  const std::string& address() const noexcept { return address_; }
  int epoll_fd() const noexcept { return poller_.fd(); }
  const std::optional<Error>& failure() const noexcept { return failure_; }
  const std::vector<FailureReport>& reports() const noexcept { return reports_; }
  const Membership& membership() const noexcept { return membership_; }
  const JobPage& page() const noexcept { return page_; }
  std::vector<int> waiting_ranks() const;

 private:
  struct Client {
    Connection connection;
    std::uint32_t watched = 0;
    bool has_backlog = false;  // Whole frames lie in the decoder, not dispatched.
  };
  using ClientId = std::uint64_t;

  // Connections: control_server_connections.cpp.
  void accept_ready();
  void shed_connection();
  void admit(Channel channel);
  void serve(ClientId id, std::uint32_t events);
  void dispatch_frames(ClientId id, Client& client);
  void watch(ClientId id, Client& client);
  void expire_greetings();
  void send(ClientId id, FrameType type, std::uint32_t request, std::string_view payload,
            int passed_fd = -1);
  void broadcast(FrameType type, std::string_view payload);
  void refuse(ClientId id, ErrorKind kind, const std::string& reason);
  void doom(ClientId id, const std::string& reason = {});
  void close_doomed();
  void settle();
  void rearm_timer();

  // Messages: control_server.cpp.
  void dispatch(ClientId id, Client& client, const Frame& frame);
  void greet(ClientId id, Client& client, const Frame& frame);
  void welcome_rank(ClientId id, Client& client, int rank);
  void dispatch_rank(ClientId id, Client& client, const Frame& frame);
  void take_report(ClientId id, int rank, const Frame& frame);
  void take_goodbye(ClientId id, Client& client, const Frame& frame);
  void cancel(RequestId request);
  void answer(RequestId request, const Reply& reply);
  void depart(int rank, Departure how);
  void answer_finishers();
  void answer_verdicts();
  bool are_reports_complete() const;
  Unfulfilled membership_facts() const;

  ControlServerOptions options_;
  ControlServerEvents events_;
  Listener listener_;
  std::string address_;
  JobPage page_;
  Poller poller_;
  Fd spare_;  // Given up to refuse a connection when descriptors run out.

  std::map<ClientId, Client> clients_;
  std::set<ClientId> greeting_;  // Half-open: they owe a hello or a report. In order of arrival.
  std::set<ClientId> doomed_;
  ClientId next_id_;
  bool is_processing_ = false;

  Membership membership_;
  StoreService store_;
  std::set<RequestId> finishers_;
  std::optional<Error> failure_;
  std::vector<FailureReport> reports_;
  VerdictBoard verdicts_;
  std::optional<Deadline> verdict_due_;
  std::optional<Deadline> verdict_overdue_;
};

}  // namespace convoy
