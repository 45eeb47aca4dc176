// Reads /proc/self.
#include "convoy/profile/process_memory.h"

#include <fstream>
#include <sstream>
#include <string>
#include <string_view>

namespace convoy::profile {
namespace {

/// The value of a line "<name>:   123 kB", in bytes.
std::optional<std::int64_t> kilobytes(std::string_view text, std::string_view name) {
  std::istringstream lines{std::string(text)};
  for (std::string line; std::getline(lines, line);) {
    if (!line.starts_with(name) || line.size() <= name.size() || line[name.size()] != ':') continue;
    std::istringstream rest(line.substr(name.size() + 1));
    std::int64_t value = 0;
    std::string unit;
    if (rest >> value >> unit && unit == "kB") return value * 1024;
  }
  return std::nullopt;
}

std::string read_file(const char* path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return std::move(text).str();
}

}  // namespace

ProcessMemory parse_process_memory(const char* status, const char* smaps_rollup) {
  return {.rss = kilobytes(status, "VmRSS"),
          .rss_peak = kilobytes(status, "VmHWM"),
          .files = kilobytes(status, "RssFile"),
          .shared = kilobytes(status, "RssShmem"),
          .pss = kilobytes(smaps_rollup, "Pss")};
}

ProcessMemory read_process_memory() {
  return parse_process_memory(read_file("/proc/self/status").c_str(),
                              read_file("/proc/self/smaps_rollup").c_str());
}

}  // namespace convoy::profile
