// A main function around yours, that turns an exception into one line, a report and an exit code.
#pragma once

namespace convoy {

/// Runs `body` and returns what it returns. If it throws, the failure is reported to the launcher
/// (if there is one), so that it is known as the first cause and the other ranks learn of it; one
/// line "error: ..." goes to stderr; and the result is 2 for an Error{kInvalidArgument} (usage,
/// input), else
/// 1. Of ranks with the same text only the lowest prints. Before, malloc is told to keep what the
/// program frees (see keep_freed_memory), unless CONVOY_ALLOCATOR is `system`.
///
///     int main(int argc, char** argv) { return convoy::guarded_main(argc, argv, train); }
int guarded_main(int argc, char** argv, int (*body)(int argc, char** argv));

}  // namespace convoy
