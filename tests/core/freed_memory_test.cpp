// What malloc does with large blocks in programs over guarded_main.
#include "core/support.h"
#include "support/catch.h"

#include <cstdio>
#include <fstream>
#include <sstream>
#include <string>

using namespace convoy;
using namespace convoy::test;

// The sanitizers bring a malloc of their own.
#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
namespace {

struct BlockUse {
  long first_faults = -1;
  long second_faults = -1;
  long huge_kb = -1;
};

BlockUse use_of_blocks(const std::vector<std::string>& variables) {
  auto child = Child::start({"memory"}, variables);
  CHECK(child.wait() == 0);
  INFO(child.output());
  BlockUse use;
  long huge_before = 0;
  CHECK(std::sscanf(child.output().c_str(),
                    "first %ld faults %ld kB huge second %ld faults %ld kB huge", &use.first_faults,
                    &huge_before, &use.second_faults, &use.huge_kb) == 4);
  return use;
}

bool grants_huge_pages() {
  std::ifstream file("/sys/kernel/mm/transparent_hugepage/enabled");
  std::stringstream text;
  text << file.rdbuf();
  return contains(text.str(), "[madvise]") || contains(text.str(), "[always]");
}

}  // namespace

TEST_CASE("Freed blocks are taken again without faults and lie on huge pages") {
  const auto use = use_of_blocks({});
  CHECK(use.second_faults < 20);
  if (grants_huge_pages()) CHECK(use.huge_kb > 0);
}

TEST_CASE("CONVOY_ALLOCATOR=system leaves freed blocks to the C library") {
  const auto use = use_of_blocks({"CONVOY_ALLOCATOR=system"});
  CHECK(use.first_faults > 0);
  CHECK(use.second_faults > 20);  // 48 huge pages, or many small ones.
}
#endif
