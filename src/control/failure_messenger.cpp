// Brings a failure report to the launcher, over a connection of its own.
#include "control/handshake.h"
#include "control/messages.h"
#include "convoy/base/check.h"
#include "convoy/control/control_client.h"

#include <chrono>
#include <exception>
#include <utility>

namespace convoy {
namespace {

constexpr auto kConnectTimeout = std::chrono::seconds(2);
// Above what the server takes to decide: it waits for the other ranks' reports for a bounded time.
constexpr auto kVerdictTimeout = std::chrono::seconds(3);

}  // namespace

struct FailureMessenger::Link {
  Channel channel;
};

FailureMessenger::FailureMessenger(const ControlClientOptions& options,
                                   const FailureReport& report) noexcept {
  try {
    auto admission = shake_hands(options, ClientRole::kReporter, Deadline::after(kConnectTimeout));
    const auto deadline = Deadline::after(kVerdictTimeout);
    admission.channel.send_frame(FrameType::kReport, 1, ReportMessage{report}.encode(), deadline);
    const auto frame = admission.channel.receive_frame(deadline);
    const auto reply = Reply::decode(frame.payload);
    should_print_ = frame.type != FrameType::kReply || reply.value != "quiet";
    link_ = std::make_unique<Link>(Link{std::move(admission.channel)});
  } catch (const std::exception&) {
    // Nobody to tell. The error is printed, twice at worst.
  }
}

FailureMessenger::~FailureMessenger() = default;

}  // namespace convoy
