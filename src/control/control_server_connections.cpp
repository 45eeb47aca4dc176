// The control server's connections: accepting, reading, writing, closing, and their time limits.
#include "control/control_server_impl.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <cerrno>
#include <memory>
#include <new>
#include <utility>

#include <fcntl.h>
#include <sys/epoll.h>
#include <unistd.h>

namespace convoy {
namespace {

constexpr std::uint64_t kListenerId = 1;
constexpr std::uint64_t kFirstClientId = 2;
// One call of process() does at most this much for each, so that the owner's loop stays alive.
constexpr int kAcceptsPerTurn = 256;
constexpr std::size_t kReadBytesPerTurn = 256 * 1024;
constexpr std::size_t kGreetingBytes = kFrameHeaderBytes + kMaxHelloBytes;

ControlAddress listen_address(const ControlServerOptions& options) {
  if (options.address.empty()) return ControlAddress::random("convoy");
  return ControlAddress::parse(options.address);
}

Fd open_spare() { return Fd(::open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

ControlServer::Impl::Impl(ControlServerOptions options, ControlServerEvents events)
    : options_(std::move(options)),
      events_(std::move(events)),
      listener_(listen_address(options_)),
      address_(listener_.address().to_string()),
      page_(JobPage::create(options_.world_size)),
      spare_(open_spare()),
      next_id_(kFirstClientId),
      membership_(options_.world_size),
      store_([this](RequestId request, const Reply& reply) { answer(request, reply); }) {
  poller_.add(listener_.fd(), kListenerId, EPOLLIN);
}

void ControlServer::Impl::process() {
  CONVOY_CHECK(!is_processing_, "process() was called from a callback");
  is_processing_ = true;
  const std::unique_ptr<bool, void (*)(bool*)> at_end(&is_processing_,
                                                      [](bool* flag) { *flag = false; });
  for (const auto& event : poller_.poll()) {
    if (event.id == kListenerId) {
      accept_ready();
    } else {
      serve(event.id, event.events);
    }
  }
  expire_greetings();
  settle();
}

void ControlServer::Impl::accept_ready() {
  for (int i = 0; i < kAcceptsPerTurn; ++i) {
    try {
      auto channel = listener_.try_accept();
      if (!channel) return;
      admit(std::move(*channel));
    } catch (const Error&) {
      shed_connection();  // Out of descriptors or memory.
      return;
    }
  }
}

// Without this, a connection that cannot be accepted would keep the listener readable for ever.
void ControlServer::Impl::shed_connection() {
  spare_.reset();
  try {
    listener_.try_accept();
    if (events_.on_refused) {
      events_.on_refused("a connection was closed: this process is out of descriptors (ulimit -n)");
    }
  } catch (const Error&) {
    // Still none: the connection waits in the queue until descriptors are free again.
  }
  spare_ = open_spare();
}

void ControlServer::Impl::admit(Channel channel) {
  const auto peer = channel.peer();
  if (peer.uid != options_.user) {
    if (events_.on_refused) {
      events_.on_refused(concat("process ", peer.pid, " of user ", peer.uid,
                                " was refused: this job belongs to user ", options_.user));
    }
    return;
  }
  const auto id = next_id_++;
  Client client{Connection(channel.release(), peer.pid, Deadline::after(options_.hello_timeout)),
                EPOLLIN};
  poller_.add(client.connection.fd(), id, EPOLLIN);
  clients_.emplace(id, std::move(client));
  greeting_.insert(id);
  serve(id, EPOLLIN);  // Most clients have sent their hello by now.
  if (greeting_.size() > static_cast<std::size_t>(options_.max_half_open)) {
    const auto oldest = *greeting_.begin();
    doom(oldest, concat("a connection of process ", clients_.at(oldest).connection.pid(),
                        " was closed: it owes its hello or report, and ", options_.max_half_open,
                        " newer ones do too"));
  }
  close_doomed();
}

void ControlServer::Impl::serve(ClientId id, std::uint32_t events) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || doomed_.contains(id)) return;
  auto& client = found->second;
  auto& connection = client.connection;
  if ((events & EPOLLOUT) != 0 && !connection.flush()) {
    doom(id);
    return;
  }
  const bool is_greeting = connection.state() == ConnectionState::kGreeting;
  try {
    auto result = Connection::ReadResult::kMore;
    if (!connection.is_clogged()) {
      result = connection.read(is_greeting ? kGreetingBytes : kReadBytesPerTurn);
    }
    dispatch_frames(id, client);
    if (result == Connection::ReadResult::kEnded) doom(id);
  } catch (const Error& error) {
    refuse(id, error.kind(), error.what());
  } catch (const std::bad_alloc&) {
    doom(id, concat("process ", connection.pid(), " was refused: no memory for its request"));
  }
  if (!doomed_.contains(id)) watch(id, client);
}

// A client that does not take its answers has no further requests done: they stay where they are,
// and serve() comes back to them when the socket takes output again.
void ControlServer::Impl::dispatch_frames(ClientId id, Client& client) {
  client.has_backlog = false;
  while (!doomed_.contains(id)) {
    if (client.connection.is_clogged()) {
      client.has_backlog = true;
      return;
    }
    const auto frame = client.connection.next_frame();
    if (!frame) return;
    dispatch(id, client, *frame);
  }
}

void ControlServer::Impl::watch(ClientId id, Client& client) {
  const auto& connection = client.connection;
  std::uint32_t wanted = connection.is_clogged() ? 0u : static_cast<std::uint32_t>(EPOLLIN);
  if (connection.has_output() || client.has_backlog) wanted |= EPOLLOUT;
  if (wanted == client.watched) return;
  poller_.modify(connection.fd(), id, wanted);
  client.watched = wanted;
}

void ControlServer::Impl::expire_greetings() {
  // Those behind the first one came later. doom() takes it out of the set.
  while (!greeting_.empty()) {
    const auto id = *greeting_.begin();
    const auto& connection = clients_.at(id).connection;
    if (!connection.hello_deadline().expired()) return;
    doom(id, concat("a connection of process ", connection.pid(),
                    " was closed: no hello or report in ", options_.hello_timeout.count(), " ms"));
  }
}

void ControlServer::Impl::send(ClientId id, FrameType type, std::uint32_t request,
                               std::string_view payload, int passed_fd) {
  const auto found = clients_.find(id);
  if (found == clients_.end() || doomed_.contains(id)) return;
  if (!found->second.connection.send(type, request, payload, passed_fd)) {
    doom(id);
    return;
  }
  watch(id, found->second);
}

void ControlServer::Impl::broadcast(FrameType type, std::string_view payload) {
  for (const auto& [id, client] : clients_) {
    if (client.connection.state() == ConnectionState::kRank) send(id, type, 0, payload);
  }
}

void ControlServer::Impl::refuse(ClientId id, ErrorKind kind, const std::string& reason) {
  auto& connection = clients_.at(id).connection;
  // Whoever has hung up meanwhile does not hear it, but the launcher's user does.
  connection.send(FrameType::kRefused, 0, encode_error(Error(kind, reason)));
  doom(id, concat("process ", connection.pid(), " was refused: ", reason));
}

void ControlServer::Impl::doom(ClientId id, const std::string& reason) {
  if (!doomed_.insert(id).second) return;
  greeting_.erase(id);
  if (!reason.empty() && events_.on_refused) events_.on_refused(reason);
}

void ControlServer::Impl::close_doomed() {
  while (!doomed_.empty()) {
    const auto id = *doomed_.begin();
    const auto node = clients_.extract(id);
    doomed_.erase(id);
    const auto& connection = node.mapped().connection;
    poller_.remove(connection.fd());
    store_.drop(id);
    verdicts_.drop(id);
    std::erase_if(finishers_, [&](RequestId request) { return request.connection == id; });
    // The connection is gone from all lists: what the departure sets off cannot find it again.
    if (connection.state() == ConnectionState::kRank) {
      depart(connection.rank(), Departure::kVanished);
    }
  }
}

// Draws the consequences of what has changed, until nothing more follows.
void ControlServer::Impl::settle() {
  do {
    close_doomed();
    answer_finishers();
    answer_verdicts();
  } while (!doomed_.empty());
  rearm_timer();
}

void ControlServer::Impl::rearm_timer() {
  std::optional<Deadline> next;
  const auto consider = [&](const std::optional<Deadline>& deadline) {
    if (deadline && (!next || deadline->point() < next->point())) next = deadline;
  };
  if (!greeting_.empty()) consider(clients_.at(*greeting_.begin()).connection.hello_deadline());
  if (verdicts_.is_waiting()) {
    const bool is_due = verdict_due_ && verdict_due_->expired();
    consider(is_due ? verdict_overdue_ : verdict_due_);
  }
  poller_.set_timer(next);
}

}  // namespace convoy
