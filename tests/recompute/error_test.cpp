// What cannot be recomputed is refused by name, and a failure leaves nothing behind.
#include "recompute/segments.h"
#include "support/catch.h"

#include <stdexcept>
#include <thread>

namespace convoy::test {

TEST_CASE("a recomputation with other results than forward is a named error") {
  auto x = rows_of(1).requires_grad_();
  auto calls = std::make_shared<int>(0);
  auto fewer_rows =
      checkpoint([calls](torch::Tensor each) { return each.narrow(0, 0, 5 - (*calls)++) * 2; }, x);
  const auto error =
      check_throws(ErrorKind::kMisuse, "of shape [4, 8]", [&] { fewer_rows.sum().backward(); });
  check(std::string(error.what()).find("in forward it was Float [5, 8]") != std::string::npos,
        error.what());
  *calls = 0;
  auto other_dtype = checkpoint(
      [calls](torch::Tensor each) { return each.to((*calls)++ == 0 ? at::kFloat : at::kDouble); },
      x);
  check_throws(ErrorKind::kMisuse, "gave a Double tensor", [&] { other_dtype.sum().backward(); });
  *calls = 0;
  auto more = checkpoint(
      [calls](torch::Tensor each) { return std::vector<torch::Tensor>(1 + (*calls)++, each * 1); },
      x);
  check_throws(ErrorKind::kMisuse, "gave 2 tensors, in forward it gave 1",
               [&] { more[0].sum().backward(); });
}

TEST_CASE("an exception in forward or in the recomputation leaves the thread as it was") {
  torch::manual_seed(3);
  auto x = rows_of(1).requires_grad_();
  CHECK_THROWS_WITH(
      checkpoint([](torch::Tensor) -> torch::Tensor { throw std::runtime_error("in forward"); }, x),
      "in forward");
  CHECK(at::GradMode::is_enabled());
  auto calls = std::make_shared<int>(0);
  auto y = checkpoint(
      [calls](torch::Tensor each) {
        each = torch::dropout(each, 0.5, /*train=*/true);
        if ((*calls)++ > 0) throw std::runtime_error("in backward");
        return each;
      },
      x);
  const auto before = generator_state();
  CHECK_THROWS_WITH(y.sum().backward(), "in backward");
  check_same_bits(generator_state(), before, "generator");
  CHECK(at::GradMode::is_enabled());
  // The next backward is not disturbed.
  checkpoint([](torch::Tensor each) { return each * 2; }, x).sum().backward();
  check_same_bits(x.grad(), torch::full({5, 8}, 2.0F), "gradient");
}

TEST_CASE("a function that changes its input in place is refused") {
  auto x = rows_of(1).requires_grad_();
  check_throws(ErrorKind::kMisuse, "changed its input 1", [&] {
    (void)checkpoint([](torch::Tensor a, torch::Tensor b) { return a + b.mul_(2); }, x, x * 1);
  });
  // And an input that is changed after forward is torch's own error.
  auto h = x * 1;
  auto y = checkpoint([](torch::Tensor each) { return each.sin(); }, h);
  h.mul_(2);
  CHECK_THROWS_AS(y.sum().backward(), c10::Error);
}

TEST_CASE("a captured tensor with a graph is refused and one that is an input is not") {
  auto x = rows_of(1).requires_grad_();
  const auto h = (x * 2).sin();
  auto captured = checkpoint([h](torch::Tensor each) { return each * h; }, x);
  check_throws(ErrorKind::kMisuse, "not among its inputs", [&] { captured.sum().backward(); });
  // Leaves are captured all the time: parameters.
  const auto weight = rows_of(2).requires_grad_();
  checkpoint([weight](torch::Tensor each) { return each * weight; }, x).sum().backward();
  check_same_bits(weight.grad(), x.detach(), "gradient");
}

TEST_CASE("a captured tensor with a graph is refused in a backward of any thread") {
  auto x = rows_of(1).requires_grad_();
  const auto in_thread = [](const std::function<void()>& body) {
    std::exception_ptr failure;
    std::thread([&] {
      try {
        body();
      } catch (...) {
        failure = std::current_exception();
      }
    }).join();
    if (failure) std::rethrow_exception(failure);
  };
  // This thread has made more nodes than a fresh one, and the other way round.
  for (const bool made_here : {true, false}) {
    torch::Tensor h;
    const auto make = [&] {
      h = x * 2;
      for (int i = 0; i < 20; ++i) h = h.sin();
    };
    made_here ? make() : in_thread(make);
    const auto captured = [&] {
      return checkpoint([h](torch::Tensor each) { return each * h; }, x).sum();
    };
    const auto backward = [](const torch::Tensor& loss) { loss.backward(); };
    check_throws(ErrorKind::kMisuse, "not among its inputs",
                 [&] { in_thread([&, loss = captured()] { backward(loss); }); });
    check_throws(ErrorKind::kMisuse, "not among its inputs", [&] { backward(captured()); });
    // Inside another checkpoint the recomputation is a backward within a backward.
    const auto around = [&] {
      return checkpoint(
                 [h](torch::Tensor each) {
                   return checkpoint([h](torch::Tensor own) { return own * h; }, each);
                 },
                 x)
          .sum();
    };
    check_throws(ErrorKind::kMisuse, "not among its inputs",
                 [&] { in_thread([&, loss = around()] { backward(loss); }); });
  }
  // What is no capture works, from any thread: a leaf, and a graph made by the function itself.
  const auto weight = rows_of(2).requires_grad_();
  const auto deep = checkpoint(
      [weight](torch::Tensor each) {
        return checkpoint([weight](torch::Tensor own) { return (own * weight).sin(); }, each) + 1;
      },
      x * 1);
  in_thread([&] { deep.sum().backward(); });
  check_same_bits(weight.grad(), x.detach() * (x.detach() * weight.detach()).cos(), "gradient");
}

TEST_CASE("second derivatives and gradients towards chosen inputs are refused by name") {
  auto x = rows_of(1).requires_grad_();
  const auto run = [&x] {
    return checkpoint([](torch::Tensor each) { return each.exp(); }, x).sum();
  };
  check_throws(ErrorKind::kMisuse, "create_graph",
               [&] { run().backward({}, c10::nullopt, /*create_graph=*/true); });
  check_throws(ErrorKind::kMisuse, "autograd::grad",
               [&] { (void)torch::autograd::grad({run()}, {x}); });
  CHECK_FALSE(x.grad().defined());
}

}  // namespace convoy::test
