// A TCP port that belongs to this job for as long as it runs, for programs that want one.
#pragma once

#include "convoy/base/fd.h"

namespace convoy::launcher {

inline constexpr const char* kMasterAddress = "127.0.0.1";

/// Convoy's own ranks meet over the control channel and use no port. MASTER_PORT is for other
/// programs, which expect torchrun's variables: the socket stays bound, so no other job gets the
/// number, and it does not listen, so a rank that sets SO_REUSEADDR (c10d's TCPStore does) can
/// listen there.
class MasterPort {
 public:
  /// Binds `port`, or a free one for 0. Error: kSystem naming address and port.
  explicit MasterPort(int port);
  int port() const noexcept { return port_; }

 private:
  Fd socket_;
  int port_ = 0;
};

}  // namespace convoy::launcher
