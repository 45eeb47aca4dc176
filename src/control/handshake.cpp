// The hello and its answer.
#include "control/handshake.h"

#include "convoy/base/check.h"
#include "convoy/control/frame.h"

#include <chrono>
#include <thread>
#include <utility>

namespace convoy {
namespace {

// The server's answer to our hello, or nothing if it hung up.
std::optional<Frame> ask(Channel& channel, const Hello& hello, Deadline deadline) {
  try {
    channel.send_frame(FrameType::kHello, 0, hello.encode(), deadline);
    return channel.receive_frame(deadline);
  } catch (const Error& error) {
    if (error.kind() == ErrorKind::kPeerLost) return std::nullopt;
    throw;
  }
}

}  // namespace

Admission shake_hands(const ControlClientOptions& options, ClientRole role, Deadline deadline) {
  const auto address = ControlAddress::parse(options.address);
  const Hello hello{kProtocolVersion,   role,           options.rank,
                    options.world_size, options.run_id, options.generation};
  for (auto pause = std::chrono::milliseconds(1);;
       pause = std::min(2 * pause, std::chrono::milliseconds(50))) {
    auto channel = Channel::connect(address, deadline);
    const auto answer = ask(channel, hello, deadline);
    if (!answer) {
      CONVOY_REQUIRE(!deadline.expired(), kTimeout, "the launcher at ", options.address,
                     " did not accept rank ", options.rank, " in time");
      std::this_thread::sleep_for(pause);
      continue;
    }
    if (answer->type == FrameType::kRefused) {
      const auto reason = decode_error(answer->payload);
      throw Error(reason.kind(), concat("the launcher refused this rank: ", reason.what()),
                  reason.rank());
    }
    CONVOY_REQUIRE(answer->type == FrameType::kWelcome, kProtocol,
                   "the launcher answered the hello with a message of type ",
                   static_cast<int>(answer->type));
    Admission admission{std::move(channel), std::nullopt};
    if (role == ClientRole::kRank) {
      admission.page = JobPage::attach(admission.channel.take_fd(), options.world_size);
    }
    return admission;
  }
}

}  // namespace convoy
