// Tells whether the backward that is running ended well or with an exception.
#include "ddp/end_of_backward.h"

#include <torch/csrc/autograd/engine.h>

#include <utility>

namespace convoy::ddp {
namespace {

class Token {
 public:
  explicit Token(std::weak_ptr<BackwardListener> listener) : listener_(std::move(listener)) {}
  ~Token() {
    if (const auto listener = listener_.lock(); listener && !used_) listener->on_backward_failed();
  }
  Token(const Token&) = delete;
  Token& operator=(const Token&) = delete;

  void use() {
    used_ = true;
    if (const auto listener = listener_.lock()) listener->on_backward_end();
  }

 private:
  std::weak_ptr<BackwardListener> listener_;
  bool used_ = false;
};

}  // namespace

void watch_backward(std::weak_ptr<BackwardListener> listener) {
  torch::autograd::Engine::get_default_engine().queue_callback(
      [token = std::make_shared<Token>(std::move(listener))] { token->use(); });
}

}  // namespace convoy::ddp
