// Rank 0's side of the meeting: makes the segment, greets the peers, and lets all go at once.
#include "comm/host/host_group.h"
#include "comm/host/packet_socket.h"
#include "comm/host/rendezvous.h"
#include "control/membership.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <system_error>
#include <utility>
#include <vector>

#include <poll.h>
#include <unistd.h>

namespace convoy {
namespace {

using std::chrono::milliseconds;

class FirstRank {
 public:
  FirstRank(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
            const Logger& log, Deadline deadline)
      : job_(job),
        options_(options),
        log_(log),
        deadline_(deadline),
        hello_(make_hello(job, options)),
        key_(rendezvous_key(job, options)),
        cache_(cache),
        listener_(listen_for_packets()) {}

  Joined run() {
    job_.store()->set(key_, listener_.name);
    std::optional<Error> failure;
    std::optional<Joined> joined;
    try {
      joined = make_segment();
      segment_fd_ = joined->segment.fd();
      greet_all();
    } catch (const Error& error) {
      failure = error;
    }
    if (failure) tell_failure(*failure);
    close();
    if (failure) throw *failure;
    ReplyMessage go;
    go.type = ReplyType::kGo;
    for (const auto& peer : peers_) send_packet(peer.socket, &go, sizeof go);
    return std::move(*joined);
  }

 private:
  enum class Stage { kConnected, kGreeted, kPresent };
  struct Peer {
    Fd socket;
    Stage stage = Stage::kConnected;
    int rank = -1;
    Deadline hello_deadline = Deadline::after(std::chrono::seconds(2));
  };

  Joined make_segment() {
    const auto bytes = layout_of_group(job_.world_size()).total_bytes;
    const auto limit = options_.shared_memory_limit;
    auto found = available_memory();
    if (limit) found = std::min(found, *limit);
    int reason = std::cmp_less(found, bytes) ? ENOSPC : 0;
    auto segment = Segment::create();
    std::shared_ptr<Mapping> base;
    if (reason == 0) {
      base = cache_.map(segment.fd(), 0, bytes);
      reason = segment.reserve(0, bytes, base->data());
    }
    if (reason == EFBIG) found = file_size_limit();
    CONVOY_REQUIRE(reason == 0, kMemory, "communicator '", options_.name, "': cannot reserve ",
                   bytes, " bytes of shared memory for ", job_.world_size(), " ranks: found ",
                   found, " bytes (", std::generic_category().message(reason),
                   "); free memory, or raise the limit (memory cgroup, shared_memory_limit, "
                   "ulimit -f)");
    HostGroup(options_.name, 0, job_.world_size(), base).enter();
    return {std::move(segment), std::move(base)};
  }

  void greet_all() {
    auto warning = std::chrono::nanoseconds(options_.warn_after);
    auto next_warning = Deadline::after(warning);
    while (present() + 1 < job_.world_size()) {
      if (const auto failure = job_.session()->failure()) throw *failure;
      if (deadline_.expired()) throw explain_missing(options_, missing());
      if (next_warning.expired()) {
        log_.warn("communicator '", options_.name, "': still waiting for ", missing());
        warning *= 2;
        next_warning = Deadline::after(warning);
      }
      wait_for_news();
      accept_all();
      for (auto& peer : peers_) read(peer);
      drop_ended();
    }
  }

  void wait_for_news() {
    std::vector<pollfd> waiting{{listener_.socket.get(), POLLIN, 0}};
    for (const auto& peer : peers_) waiting.push_back({peer.socket.get(), POLLIN, 0});
    const auto slice =
        std::chrono::duration_cast<milliseconds>(deadline_.sooner(milliseconds(100)).remaining());
    ::poll(waiting.data(), waiting.size(), static_cast<int>(slice.count()) + 1);
  }

  void accept_all() {
    // Strangers of this user may connect too; only so many of them are kept.
    const auto most = static_cast<std::size_t>(job_.world_size()) + 64;
    while (auto socket = accept_packet_socket(listener_.socket)) {
      if (peers_.size() < most) peers_.push_back({.socket = std::move(*socket)});
    }
  }

  void read(Peer& peer) {
    if (peer.stage == Stage::kConnected) return read_hello(peer);
    ReplyMessage message;
    const auto packet = receive_packet(peer.socket, &message, sizeof message);
    if (packet.kind == Packet::Kind::kNone) return;
    if (packet.kind == Packet::Kind::kEnd || packet.bytes != sizeof message) {
      peer.socket.reset();
      tell_status();
      return;
    }
    if (message.type == ReplyType::kFailure) throw to_error(message);
    if (message.type == ReplyType::kPresent) {
      peer.stage = Stage::kPresent;
      tell_status();
    }
  }

  void read_hello(Peer& peer) {
    HelloMessage hello;
    const auto packet = receive_packet(peer.socket, &hello, sizeof hello);
    if (packet.kind == Packet::Kind::kNone) {
      if (peer.hello_deadline.expired()) peer.socket.reset();
      return;
    }
    const bool is_ours = packet.kind == Packet::Kind::kMessage && packet.bytes == sizeof hello &&
                         hello.magic == kRendezvousMagic;
    if (!is_ours) return peer.socket.reset();
    const auto pid = peer_pid(peer.socket);
    const auto difference = find_difference(hello, hello_);
    CONVOY_REQUIRE(difference.empty(), kMismatch, "communicator '", options_.name, "': rank ",
                   hello.rank, " (pid ", pid, ") has ", difference, " as rank 0 (pid ", ::getpid(),
                   "); all ranks must make it alike");
    for (const auto& other : peers_) {
      const bool is_same = other.socket && other.rank == hello.rank;
      CONVOY_REQUIRE(hello.rank != 0 && !is_same, kMismatch, "communicator '", options_.name,
                     "': two processes claim rank ", hello.rank, ": pid ",
                     is_same ? peer_pid(other.socket) : ::getpid(), " and pid ", pid);
    }
    peer.rank = hello.rank;
    peer.stage = Stage::kGreeted;
    ReplyMessage message;
    message.type = ReplyType::kSegment;
    send_packet(peer.socket, &message, sizeof message, segment_fd_);
    tell_status();
  }

  void drop_ended() {
    std::erase_if(peers_, [](const Peer& peer) { return !peer.socket; });
  }

  // The ranks that are missing, to all who have come.
  void tell_status() {
    ReplyMessage message;
    missing().copy(message.text, sizeof message.text - 1);
    for (const auto& peer : peers_) {
      if (peer.socket && peer.rank >= 0) send_packet(peer.socket, &message, sizeof message);
    }
  }

  // Those who are here by message, those who are not yet by a letter in the store.
  void tell_failure(const Error& error) {
    const auto message = make_failure(error);
    for (int rank = 1; rank < job_.world_size(); ++rank) {
      const auto peer = std::find_if(peers_.begin(), peers_.end(), [&](const Peer& candidate) {
        return candidate.socket && candidate.rank == rank;
      });
      if (peer != peers_.end() && send_packet(peer->socket, &message, sizeof message)) continue;
      leave_letter(job_, options_, rank, message);
    }
  }

  void close() {
    listener_.socket.reset();
    job_.store()->remove(key_);
  }

  int present() const {
    return static_cast<int>(std::count_if(peers_.begin(), peers_.end(), [](const Peer& peer) {
      return peer.stage == Stage::kPresent;
    }));
  }

  // Those who have not come; once all have, those who have not mapped the memory yet.
  std::string missing() const {
    std::vector<int> ranks = ranks_below(Stage::kGreeted);
    if (ranks.empty()) ranks = ranks_below(Stage::kPresent);
    return ranks.empty() ? "nobody" : name_ranks(ranks);
  }

  std::vector<int> ranks_below(Stage stage) const {
    std::vector<int> ranks;
    for (int r = 1; r < job_.world_size(); ++r) {
      const bool is_there = std::any_of(peers_.begin(), peers_.end(), [&](const Peer& peer) {
        return peer.socket && peer.rank == r && peer.stage >= stage;
      });
      if (!is_there) ranks.push_back(r);
    }
    return ranks;
  }

  const Job& job_;
  const CommunicatorOptions& options_;
  const Logger& log_;
  Deadline deadline_;
  HelloMessage hello_;
  std::string key_;
  MappingCache& cache_;
  PacketListener listener_;
  std::vector<Peer> peers_;
  int segment_fd_ = -1;
};

}  // namespace

Joined rendezvous_as_first(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
                           const Logger& log, Deadline deadline) {
  return FirstRank(job, options, cache, log, deadline).run();
}

}  // namespace convoy
