// The communicator at its simplest.
#include <torch/torch.h>

#include "convoy/comm/run_ranks.h"
#include "support/catch.h"

TEST_CASE("all_reduce sums over three ranks") {
  convoy::run_ranks(3, [](convoy::Rank& r) {
    auto t = torch::full({5}, static_cast<float>(r.rank()));
    r.comm().all_reduce(t)->wait();
    if (!t.eq(3).all().item<bool>()) throw std::runtime_error("wrong sum");
  });
}
