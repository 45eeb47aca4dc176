// How much memory there is to take: the machine's, and what memory cgroups allow.
#include "comm/host/segment.h"

#include <algorithm>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>

namespace convoy {
namespace {

constexpr auto kUnlimited = std::numeric_limits<std::int64_t>::max();

// The number behind `key` in a file of lines "key number", times `unit`.
std::optional<std::int64_t> keyed_number(const std::string& path, const std::string& key,
                                         std::int64_t unit) {
  std::ifstream file(path);
  std::string word;
  while (file >> word) {
    std::int64_t number = 0;
    if (word == key && file >> number) return number * unit;
    file.clear();
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::nullopt;
}

// A file that holds one number; nothing for "max" or no file.
std::optional<std::int64_t> sole_number(const std::string& path) {
  std::ifstream file(path);
  std::int64_t number = 0;
  if (file >> number) return number;
  return std::nullopt;
}

// What one cgroup folder leaves. Cached file pages that are idle would be given up, so they count
// as free.
std::int64_t left_in(const std::string& folder, const char* limit_file, const char* usage_file,
                     const char* idle_key) {
  const auto limit = sole_number(folder + limit_file);
  const auto usage = sole_number(folder + usage_file);
  if (!limit || !usage) return kUnlimited;
  const auto idle = keyed_number(folder + "/memory.stat", idle_key, 1).value_or(0);
  return std::max<std::int64_t>(0, *limit - std::max<std::int64_t>(0, *usage - idle));
}

// The least that the cgroup `path` under `root` and all above it leave.
std::int64_t least_up_from(const std::string& root, std::string path, const char* limit_file,
                           const char* usage_file, const char* idle_key) {
  auto least = kUnlimited;
  for (;;) {
    if (path == "/") path.clear();
    least = std::min(least, left_in(root + path, limit_file, usage_file, idle_key));
    const auto slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

}  // namespace

std::int64_t available_memory() {
  auto least = keyed_number("/proc/meminfo", "MemAvailable:", 1024).value_or(kUnlimited);
  std::ifstream groups("/proc/self/cgroup");
  // Lines "number:controllers:path"; version 2 is the line "0::path".
  for (std::string line; std::getline(groups, line);) {
    std::istringstream fields(line);
    std::string number;
    std::string controllers;
    std::string path;
    std::getline(fields, number, ':');
    std::getline(fields, controllers, ':');
    std::getline(fields, path);
    if (controllers.empty()) {
      least = std::min(least, least_up_from("/sys/fs/cgroup", path, "/memory.max",
                                            "/memory.current", "inactive_file"));
    } else if (controllers == "memory") {
      least = std::min(least, least_up_from("/sys/fs/cgroup/memory", path, "/memory.limit_in_bytes",
                                            "/memory.usage_in_bytes", "total_inactive_file"));
    }
  }
  return least;
}

}  // namespace convoy
