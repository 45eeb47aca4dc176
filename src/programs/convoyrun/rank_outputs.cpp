// Watches output pipes, and pauses them while the console is congested.
#include "programs/convoyrun/rank_outputs.h"

#include "convoy/base/error.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fcntl.h>
#include <unistd.h>

namespace convoy::launcher {

RankOutputs::RankOutputs(EventLoop& loop, Console& console, const LogFiles& logs)
    : loop_(loop), console_(console), logs_(logs) {}

RankOutputs::~RankOutputs() {
  for (const auto& output : outputs_) {
    if (output->is_open()) loop_.remove(output->fd());
  }
}

Fd RankOutputs::open(int rank, Stream stream) {
  if (logs_.only_keeps(rank, stream)) return logs_.open(rank, stream);
  int ends[2];
  if (::pipe2(ends, O_CLOEXEC) != 0) {
    throw_system_error("cannot make a pipe for a rank's output", errno);
  }
  Fd read_end(ends[0]);
  Fd write_end(ends[1]);
  const bool keeps = logs_.keeps(rank, stream);
  outputs_.push_back(std::make_unique<RankOutput>(rank, stream, std::move(read_end),
                                                  keeps ? logs_.open(rank, stream) : Fd(),
                                                  keeps ? logs_.path(rank, stream) : ""));
  watch(*outputs_.back());
  return write_end;
}

void RankOutputs::watch(RankOutput& output) {
  loop_.add(output.fd(), EPOLLIN, [this, &output](std::uint32_t) { on_readable(output); });
}

void RankOutputs::on_readable(RankOutput& output) {
  if (console_.is_congested(output.stream())) {
    // Not watched at all: a pipe that hung up would be reported again and again.
    loop_.remove(output.fd());
    paused_.push_back(&output);
    return;
  }
  if (!output.read_once(console_)) close(output);
}

void RankOutputs::close(RankOutput& output) {
  loop_.remove(output.fd());
  output.close(console_);
}

void RankOutputs::resume() {
  auto waiting = std::exchange(paused_, {});
  for (RankOutput* output : waiting) {
    if (console_.is_congested(output->stream())) {
      paused_.push_back(output);
    } else {
      watch(*output);
    }
  }
}

bool RankOutputs::are_closed() const {
  return std::none_of(outputs_.begin(), outputs_.end(),
                      [](const auto& output) { return output->is_open(); });
}

void RankOutputs::close_all() {
  paused_.clear();
  for (const auto& output : outputs_) {
    if (output->is_open()) close(*output);
  }
}

std::vector<std::string> RankOutputs::stderr_tail(int rank) const {
  if (logs_.only_keeps(rank, Stream::kErr)) {
    return tail_of_file(logs_.path(rank, Stream::kErr));
  }
  for (const auto& output : outputs_) {
    if (output->rank() == rank && output->stream() == Stream::kErr) return output->tail().lines();
  }
  return {};
}

}  // namespace convoy::launcher
