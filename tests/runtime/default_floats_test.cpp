// The caller's choices for floating-point arithmetic: calls neither follow nor change them.
#include <gtest/gtest.h>

#include <cfenv>
#include <thread>
#include <vector>

#include "flashlift/attention.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace flashlift {
namespace {

using Bits = std::vector<std::vector<std::byte>>;

// A problem and the tensors of a forward and a backward call, which are drawn once.
class Calls {
 public:
  explicit Calls(const char* text)
      : problem_(*parse_problem(text)), memory_(testing::dense_arguments(problem_, random_)) {
    backward_.forward = memory_.views;
    backward_.d_out = like(memory_.views.out);
    backward_.d_q = like(memory_.views.q);
    backward_.d_k = like(memory_.views.k);
    backward_.d_v = like(memory_.views.v);
  }

  // Compiles and runs both. The threads of `executor` inherit the choices of the calling thread.
  Bits results() {
    testing::Threads executor(3);
    const Result<Attention> attention = Attention::compile(problem_);
    EXPECT_TRUE(attention.ok() && attention->run(memory_.views, {.executor = &executor}).ok());
    EXPECT_TRUE(attention.ok() && attention->run_backward(backward_, {.executor = &executor}).ok());
    Bits bits;
    for (const TensorView& view :
         {memory_.views.out, *memory_.views.lse, *backward_.d_q, *backward_.d_k, *backward_.d_v}) {
      bits.push_back(testing::bits_of(view));
    }
    return bits;
  }

 private:
  TensorView like(const TensorView& view) {
    return memory_.dense(view.dtype, {view.shape().begin(), view.shape().end()}, random_);
  }

  Problem problem_;
  testing::Random random_{1};
  testing::OwnedArguments memory_;
  BackwardArguments backward_;
};

constexpr const char* kProblems[] = {
    "attn h1 s16 d16 bf16 softcap=0.5 lse",
    "attn h4 s200 d40 alibi causal lse",
    // Some of the exponentials are infinite.
    "attn h2 s200 d16 lse score_mod() { %0 = mul score, 30.0; %1 = exp %0; %2 = min %1, 9.0; return %2 }",
};

TEST(CallersFloats, RoundingIsNeitherReadNorChanged) {
  for (const char* text : kProblems) {
    Calls calls(text);
    const Bits expected = calls.results();
    for (const int rounding : {FE_DOWNWARD, FE_UPWARD, FE_TOWARDZERO}) {
      std::thread([&] {
        std::fesetround(rounding);
        EXPECT_TRUE(calls.results() == expected) << text << ", rounding " << rounding;
        EXPECT_EQ(std::fegetround(), rounding);
      }).join();
    }
  }
}

TEST(CallersFloats, TrapsAreNeitherSprungNorChanged) {
  for (const char* text : kProblems) {
    Calls calls(text);
    const Bits expected = calls.results();
    std::thread([&] {
      feenableexcept(FE_OVERFLOW | FE_DIVBYZERO | FE_INVALID);  // changes nothing on processors without traps
      const int traps = fegetexcept();
      EXPECT_TRUE(calls.results() == expected) << text;
      EXPECT_EQ(fegetexcept(), traps);
    }).join();
  }
}

}  // namespace
}  // namespace flashlift
