// The steps of an operation's life.
#include "comm/host/operation.h"

#include "convoy/base/check.h"

namespace convoy {
namespace {

bool is_allowed(OpState from, OpState to) {
  if (to == OpState::kFailed) return from != OpState::kDone;
  switch (from) {
    case OpState::kQueued: return to == OpState::kEntered;
    case OpState::kEntered: return to == OpState::kMatched;
    case OpState::kMatched: return to == OpState::kMoved || to == OpState::kDone;
    case OpState::kMoved: return to == OpState::kDone;
    case OpState::kDone:
    case OpState::kFailed: return false;
  }
  return false;
}

}  // namespace

void Operation::enter(OpState to) {
  CONVOY_CHECK(is_allowed(state, to), to_string(kind()), " #", sequence(), ": state ",
               static_cast<int>(state), " to ", static_cast<int>(to));
  state = to;
}

void Operation::release() {
  input.reset();
  outputs.clear();
  own.clear();
}

std::int64_t Operation::payload_bytes() const {
  std::int64_t bytes = 0;
  for (const auto& output : outputs) bytes += static_cast<std::int64_t>(output.nbytes());
  return bytes;
}

}  // namespace convoy
