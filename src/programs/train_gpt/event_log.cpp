// Appends lines to a file.
#include "programs/train_gpt/event_log.h"

#include "convoy/base/check.h"

#include <cerrno>
#include <system_error>

#include <fcntl.h>
#include <unistd.h>

namespace convoy::train_gpt {

EventLog::EventLog(const std::string& path, bool is_writer) : path_(path) {
  if (path_.empty()) return;
  const int how = O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | (is_writer ? O_TRUNC : 0);
  file_ = Fd(::open(path.c_str(), how, 0644));
  CONVOY_REQUIRE(static_cast<bool>(file_), kInvalidArgument, "cannot write --json '", path,
                 "': ", std::generic_category().message(errno));
  if (!is_writer) file_.reset();
}

void EventLog::write(const JsonLine& event) {
  if (!file_) return;
  const std::string line = event.text() + "\n";
  std::size_t done = 0;
  while (done < line.size()) {
    const ssize_t count = ::write(file_.get(), line.data() + done, line.size() - done);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) throw_system_error(concat("cannot write --json '", path_, "'"), errno);
    done += static_cast<std::size_t>(count);
  }
}

}  // namespace convoy::train_gpt
