// Many threads share one attention, or make its first calls. `make tsan` runs these tests under ThreadSanitizer.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>

#include "flashlift/attention.h"
#include "support/tensors.h"
#include "support/threads.h"

namespace flashlift {
namespace {

using testing::Threads;

// First runs another call on the waiting thread, as a pool may do that takes any available work.
class NestingThreads : public Threads {
 public:
  NestingThreads(int count, std::function<void()> other) : Threads(count), other_(std::move(other)) {}
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    other_();
    Threads::parallel_for(count, body);
  }

 private:
  std::function<void()> other_;
};

Problem problem_of(const char* text) {
  Result<Problem> problem = parse_problem(text);
  EXPECT_TRUE(problem.ok()) << problem.error().message;
  return *std::move(problem);
}

using Bits = std::vector<std::vector<std::byte>>;

// All that a forward and a backward call read and write.
struct Tensors {
  explicit Tensors(const Problem& problem) : random(1), memory(testing::dense_arguments(problem, random)) {
    written.push_back(memory.views.out);
    backward.d_out = like(memory.views.out);
    backward.d_q = like(memory.views.q);
    backward.d_k = like(memory.views.k);
    backward.d_v = like(memory.views.v);
    for (const TensorView& capture : memory.views.captures) {
      backward.d_captures.emplace_back();
      if (is_float(capture.dtype)) {
        backward.d_captures.back() = like(capture);
      }
    }
    backward.forward = memory.views;
  }

  TensorView like(const TensorView& view) {
    written.push_back(memory.dense(view.dtype, {view.shape().begin(), view.shape().end()}, random));
    return written.back();
  }

  testing::Random random;
  testing::OwnedArguments memory;
  BackwardArguments backward;
  std::vector<TensorView> written;
};

// Everything that a forward and a backward call write.
Bits run(const Problem& problem, Executor& executor) {
  const Result<Attention> attention = Attention::compile(problem);
  EXPECT_TRUE(attention.ok()) << attention.error().message;
  const Tensors tensors(problem);
  EXPECT_TRUE(attention->run(tensors.memory.views, {.executor = &executor}).ok());
  EXPECT_TRUE(attention->run_backward(tensors.backward, {.executor = &executor}).ok());
  Bits bits;
  for (const TensorView& view : tensors.written) {
    const auto* from = static_cast<const std::byte*>(view.data);
    bits.emplace_back(from, from + static_cast<size_t>(view.element_count()) * size_in_bytes(view.dtype));
  }
  return bits;
}

constexpr const char* kProblems[] = {
    "attn hq4 hkv2 s300 d16 causal softcap=20 lse",
    "attn b2 h2 s300 d16 cu_seqlens causal bias=f32 lse",
    "attn hq8 hkv2 sq2 skv3000 d16 window=2000 lse",
    "attn h2 s300 d16 dropout=0.2 lse score_mod(table: f32[64]) { %0 = sub kv, q; %1 = load table[%0]; "
    "%2 = add score, %1; return %2 }",
};

// Each problem is new to the process when its threads start: they also compile it at the same time.
TEST(Concurrency, CallsOnManyThreadsGiveTheBitsOfOne) {
  for (const char* text : kProblems) {
    const Problem problem = problem_of(text);
    std::vector<Bits> results(4);
    {
      std::vector<std::jthread> callers;
      for (size_t i = 0; i < results.size(); ++i) {
        callers.emplace_back([&, i] {
          Threads executor(1 + static_cast<int>(i));
          results[i] = run(problem, executor);
        });
      }
    }
    for (size_t i = 1; i < results.size(); ++i) {
      EXPECT_EQ(results[i], results[0]) << text << ", " << i + 1 << " threads";
    }
  }
}

TEST(Concurrency, AThreadThatWaitsMayRunOtherCalls) {
  const Problem problem = problem_of(kProblems[0]);
  const Problem other = problem_of("attn h3 s500 d32 segment_ids lse");
  Threads one(1);
  const Bits alone = run(problem, one);
  const Bits other_alone = run(other, one);
  NestingThreads nesting(3, [&] { EXPECT_EQ(run(other, one), other_alone); });
  EXPECT_EQ(run(problem, nesting), alone);
}

TEST(Concurrency, ACancelledCallOfManyThreadsEndsEarly) {
  const Problem problem = problem_of("attn h8 s8192 d64 f32 causal lse");
  const Result<Attention> attention = Attention::compile(problem);
  ASSERT_TRUE(attention.ok()) << attention.error().message;
  const Tensors tensors(problem);
  Threads threads(4);
  for (const bool backward : {false, true}) {
    std::atomic<int32_t> cancelled{0};
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      cancelled.store(1);
    });
    const RunOptions options{.executor = &threads, .cancelled = &cancelled};
    const Status status =
        backward ? attention->run_backward(tensors.backward, options) : attention->run(tensors.memory.views, options);
    other.join();
    ASSERT_FALSE(status.ok());
    EXPECT_EQ(status.error().kind, ErrorKind::kCancelled);
  }
}

}  // namespace
}  // namespace flashlift
