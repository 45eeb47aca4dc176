// Random store operations of many clients, whose results each client can check by itself.
#pragma once

#include "convoy/control/store.h"

#include <cstdint>
#include <string>

namespace convoy::test {

/// Does `count` operations of client `client` among `clients`, drawn from `seed`, and checks every
/// result: own keys against a model, what others have set for their known value, shared counters by
/// their growth. Throws with the seed where something is wrong. Every client must run it, with the
/// same seed and count.
void run_random_operations(Store& store, int client, int clients, std::uint64_t seed, int count);

}  // namespace convoy::test
