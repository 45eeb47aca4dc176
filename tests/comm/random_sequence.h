// A random sequence of collectives made from one seed, the same on all ranks, every result checked.
#pragma once

#include "convoy/comm/communicator.h"

namespace convoy::test {

/// `count` operations of all kinds, sizes, types and kinds of memory, many of them in flight at
/// once. Throws with seed and number of the operation whose result is wrong.
void run_random_sequence(Communicator& comm, unsigned seed, int count);

}  // namespace convoy::test
