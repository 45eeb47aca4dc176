// The side of every rank but 0 in the meeting: finds rank 0, says hello, maps what it gets.
#include "comm/host/host_group.h"
#include "comm/host/packet_socket.h"
#include "comm/host/rendezvous.h"
#include "convoy/base/check.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <optional>
#include <thread>
#include <utility>

#include <poll.h>

namespace convoy {
namespace {

using std::chrono::milliseconds;

// Rank 0 answers at once unless it hangs.
constexpr auto kVerdictLimit = std::chrono::seconds(2);

class PeerRank {
 public:
  PeerRank(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
           Deadline deadline)
      : job_(job), options_(options), cache_(cache), deadline_(deadline) {}

  Joined run() {
    for (;;) {
      const auto socket = find_first();
      const auto hello = make_hello(job_, options_);
      if (!send_packet(socket, &hello, sizeof hello)) continue;
      if (auto joined = take_part(socket)) return std::move(*joined);
    }
  }

 private:
  void look_at_time() const {
    if (const auto failure = job_.session()->failure()) throw *failure;
    if (deadline_.expired()) throw explain_missing(options_, missing_);
  }

  // Rank 0 decides what is said when the time is up. A peer whose time is up sooner proposes it.
  void look_at_time(const Fd& socket) {
    if (!proposed_) {
      if (const auto failure = job_.session()->failure()) throw *failure;
      if (!deadline_.expired()) return;
      proposed_ = explain_missing(options_, missing_);
      const auto message = make_failure(*proposed_);
      send_packet(socket, &message, sizeof message);
      deadline_ = Deadline::after(kVerdictLimit);
    } else if (deadline_.expired()) {
      throw *proposed_;
    }
  }

  // A connection to rank 0. A name that nobody listens on is left over from the round before.
  Fd find_first() {
    const auto key = rendezvous_key(job_, options_);
    for (auto pause = milliseconds(1);; pause = std::min(2 * pause, milliseconds(20))) {
      look_at_time();
      if (const auto letter = take_letter(job_, options_)) throw to_error(*letter);
      if (const auto name = job_.store()->try_get(key)) {
        if (auto socket = connect_packet_socket(*name)) return std::move(*socket);
      }
      std::this_thread::sleep_for(pause);
    }
  }

  // Nothing if rank 0 ended this round; then there is another one to find.
  std::optional<Joined> take_part(const Fd& socket) {
    std::optional<Joined> joined;
    for (;;) {
      ReplyMessage message;
      auto packet = receive_packet(socket, &message, sizeof message);
      if (packet.kind == Packet::Kind::kNone) {
        wait_for_news(socket);
        continue;
      }
      if (packet.kind == Packet::Kind::kEnd) {
        if (proposed_) throw *proposed_;
        return std::nullopt;
      }
      CONVOY_REQUIRE(packet.bytes == sizeof message && message.magic == kRendezvousMagic, kProtocol,
                     "rank 0 sent something else than a reply");
      switch (message.type) {
        case ReplyType::kStatus:
          missing_.assign(message.text, ::strnlen(message.text, sizeof message.text));
          break;
        case ReplyType::kSegment: joined = map(socket, std::move(packet.passed_fd)); break;
        case ReplyType::kFailure: throw to_error(message);
        case ReplyType::kGo:
          CONVOY_REQUIRE(joined, kProtocol, "rank 0 said go before it sent the segment");
          return joined;
        case ReplyType::kPresent: throw Error(ErrorKind::kProtocol, "rank 0 sent a peer's message");
      }
    }
  }

  void wait_for_news(const Fd& socket) {
    look_at_time(socket);
    pollfd waiting{socket.get(), POLLIN, 0};
    const auto slice =
        std::chrono::duration_cast<milliseconds>(deadline_.sooner(milliseconds(100)).remaining());
    ::poll(&waiting, 1, static_cast<int>(slice.count()) + 1);
  }

  // A failure goes to rank 0, which sends it to everybody, this rank included.
  std::optional<Joined> map(const Fd& socket, Fd memory) {
    std::optional<Joined> joined;
    ReplyMessage answer;
    answer.type = ReplyType::kPresent;
    try {
      const auto bytes = layout_of_group(job_.world_size()).total_bytes;
      auto segment = Segment::adopt(std::move(memory), bytes);
      auto base = cache_.map(segment.fd(), 0, bytes);
      HostGroup(options_.name, job_.rank(), job_.world_size(), base).enter();
      joined = Joined{std::move(segment), std::move(base)};
    } catch (const Error& error) {
      answer = make_failure(Error(
          error.kind(),
          concat("communicator '", options_.name, "', rank ", job_.rank(), ": ", error.what()),
          job_.rank()));
    }
    send_packet(socket, &answer, sizeof answer);
    return joined;
  }

  const Job& job_;
  const CommunicatorOptions& options_;
  MappingCache& cache_;
  Deadline deadline_;
  std::string missing_ = "rank 0";
  std::optional<Error> proposed_;  // Sent to rank 0; its answer counts.
};

}  // namespace

Joined rendezvous_as_peer(const Job& job, const CommunicatorOptions& options, MappingCache& cache,
                          Deadline deadline) {
  return PeerRank(job, options, cache, deadline).run();
}

}  // namespace convoy
