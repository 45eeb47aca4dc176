// Sends requests, and delivers what the server sends.
#include "control/control_link.h"

#include "convoy/base/check.h"

#include <array>
#include <csignal>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>

#include <unistd.h>

namespace convoy {
namespace {

constexpr auto kGoodbyeTimeout = std::chrono::seconds(2);
constexpr auto kCancelTimeout = std::chrono::seconds(2);

Error launcher_gone() {
  return Error(ErrorKind::kPeerLost, "the launcher is gone: the control channel has ended");
}

// Error: kSystem when the system allows no further thread.
std::thread start_without_signals(auto body) {
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  const std::unique_ptr<sigset_t, void (*)(sigset_t*)> at_end(
      &before, [](sigset_t* set) { pthread_sigmask(SIG_SETMASK, set, nullptr); });
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    throw_system_error("starting the session's thread", error.code().value());
  }
}

}  // namespace

ControlLink::ControlLink(Channel channel, int world_size, std::chrono::nanoseconds answer_timeout)
    : channel_(std::move(channel)),
      answer_timeout_(answer_timeout),
      owner_(::getpid()),
      has_left_(static_cast<std::size_t>(world_size)) {
  reader_ = start_without_signals([this] { read_until_end(); });
}

ControlLink::~ControlLink() { end_reading(); }

void ControlLink::send(FrameType type, std::uint32_t request, std::string_view payload) {
  const auto bytes = encode_frame(type, request, payload);
  std::optional<Error> lost;
  {
    const std::lock_guard lock(send_mutex_);
    try {
      channel_.send(bytes, Deadline::after(answer_timeout_));
    } catch (const Error& error) {
      lost =
          error.kind() == ErrorKind::kTimeout
              ? Error(error.kind(), "the launcher takes no requests: it is stopped or overloaded")
              : launcher_gone();
    }
  }
  if (!lost) return;
  // Part of the frame may be out, so nothing can follow it. Outside of the lock, because failure
  // callbacks run here, and they may send.
  lose(*lost);
  channel_.shut_down();
}

void ControlLink::post(FrameType type, std::string_view payload) { send(type, 0, payload); }

Reply ControlLink::call(FrameType type, std::string_view payload) {
  const auto number = requests_.open();
  send(type, number, payload);
  Reply reply;
  const auto deadline = Deadline::after(answer_timeout_);
  if (requests_.wait(number, deadline, /*can_interrupt=*/false, reply) !=
      RequestTable::Outcome::kAnswered) {
    requests_.close(number);
    throw Error(ErrorKind::kTimeout, "the launcher does not answer: it is stopped or overloaded");
  }
  if (reply.status == ReplyStatus::kError) throw *reply.error;
  return reply;
}

Reply ControlLink::call_waiting(FrameType type, std::string_view payload, Deadline deadline) {
  const auto number = requests_.open();
  send(type, number, payload);
  Reply reply;
  auto outcome = requests_.wait(number, deadline, /*can_interrupt=*/true, reply);
  if (outcome != RequestTable::Outcome::kAnswered) {
    send(FrameType::kCancel, number, {});
    outcome =
        requests_.wait(number, Deadline::after(kCancelTimeout), /*can_interrupt=*/false, reply);
  }
  if (outcome != RequestTable::Outcome::kAnswered) {
    requests_.close(number);
    throw Error(ErrorKind::kTimeout, "the launcher does not answer: it is stopped or overloaded");
  }
  if (reply.status == ReplyStatus::kError) throw *reply.error;
  return reply;
}

void ControlLink::read_until_end() {
  FrameDecoder decoder;
  std::array<char, 64 * 1024> bytes;
  const auto never = Deadline::at(Deadline::Clock::time_point::max());
  try {
    for (;;) {
      const auto got = channel_.receive_some(bytes.data(), bytes.size(), never);
      if (got == 0) break;
      decoder.feed({bytes.data(), got});
      while (const auto frame = decoder.next()) take(*frame);
    }
    lose(launcher_gone());
  } catch (const Error& error) {
    lose(Error(error.kind(), concat("the control channel failed: ", error.what()), error.rank()));
  } catch (const std::exception& error) {
    lose(Error(ErrorKind::kMemory, concat("the control channel failed: ", error.what())));
  }
}

void ControlLink::take(const Frame& frame) {
  switch (frame.type) {
    case FrameType::kReply: requests_.deliver(frame.request, Reply::decode(frame.payload)); return;
    case FrameType::kFailure:
      failure_.set(decode_error(frame.payload));
      requests_.interrupt();
      return;
    case FrameType::kMembership: {
      const auto message = MembershipMessage::decode(frame.payload);
      const std::lock_guard lock(membership_mutex_);
      const auto rank = static_cast<std::size_t>(message.rank);
      CONVOY_REQUIRE(message.rank >= 0 && rank < has_left_.size(), kProtocol, "news of rank ",
                     message.rank, ", which is outside of the world");
      has_left_[rank] = message.has_left;
      return;
    }
    case FrameType::kRefused: throw decode_error(frame.payload);
    default:
      throw Error(ErrorKind::kProtocol, concat("an unexpected message of type ",
                                               static_cast<int>(frame.type), " from the launcher"));
  }
}

void ControlLink::lose(const Error& cause) {
  requests_.lose(cause);
  if (!is_closing_.load()) failure_.set(cause);  // Our own end of the stream is no failure.
}

std::vector<int> ControlLink::left_ranks() const {
  const std::lock_guard lock(membership_mutex_);
  std::vector<int> ranks;
  for (std::size_t rank = 0; rank < has_left_.size(); ++rank) {
    if (has_left_[rank]) ranks.push_back(static_cast<int>(rank));
  }
  return ranks;
}

void ControlLink::close(bool is_unwinding) noexcept {
  if (::getpid() != owner_) return;
  try {
    const auto number = requests_.open();
    send(FrameType::kGoodbye, number, FieldWriter().u32(is_unwinding ? 1 : 0).take());
    Reply reply;
    requests_.wait(number, Deadline::after(kGoodbyeTimeout), /*can_interrupt=*/false, reply);
  } catch (const std::exception&) {
    // The launcher is gone; there is nobody to say goodbye to.
  }
  is_closing_.store(true);
  try {
    requests_.lose(Error(ErrorKind::kMisuse, "the session with the job has ended"));
  } catch (const std::exception&) {
    // No memory for the text: later calls say that the launcher is gone.
  }
  end_reading();
}

void ControlLink::end_reading() noexcept {
  if (!reader_.joinable()) return;
  if (::getpid() != owner_) {
    reader_.detach();  // There is no such thread in a forked child.
    return;
  }
  is_closing_.store(true);
  channel_.shut_down();
  reader_.join();
}

}  // namespace convoy
