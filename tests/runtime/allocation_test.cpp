// A repeated call allocates nothing; a call without enough memory writes nothing; and a cancelled call leaks nothing.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <optional>
#include <thread>

#include "flashlift/attention.h"
#include "flashlift/block_mask.h"
#include "support/allocation_hooks.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

// Several workers, run one after the other: memory is reserved for each, as for threads.
class InlineExecutor : public Executor {
 public:
  explicit InlineExecutor(int concurrency) : concurrency_(concurrency) {}
  int concurrency() const override { return concurrency_; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    for (int64_t i = 0; i < count; ++i) {
      body(i);
    }
  }

 private:
  int concurrency_;
};

// A problem with all the tensors of a forward and a backward call.
class Call {
 public:
  explicit Call(Problem problem) : attention_(Attention::compile(problem)), random_(1) {
    EXPECT_TRUE(attention_.ok()) << attention_.error().message;
    arguments_ = testing::dense_arguments(problem, random_);
    outputs_ = {arguments_.views.out};
    if (arguments_.views.lse) {
      outputs_.push_back(*arguments_.views.lse);
    }
    gradients_.forward = arguments_.views;
    gradients_.d_out = like(arguments_.views.out);
    gradients_.d_q = d_outputs_.emplace_back(like(arguments_.views.q));
    gradients_.d_k = d_outputs_.emplace_back(like(arguments_.views.k));
    gradients_.d_v = d_outputs_.emplace_back(like(arguments_.views.v));
    for (const TensorView& capture : arguments_.views.captures) {
      gradients_.d_captures.emplace_back();
      if (is_float(capture.dtype)) {
        gradients_.d_captures.back() = d_outputs_.emplace_back(like(capture));
      }
    }
    if (arguments_.views.sinks) {
      gradients_.d_sinks = d_outputs_.emplace_back(like(*arguments_.views.sinks));
    }
  }

  bool has_backward() const { return verify_backward(attention_->problem()).ok(); }
  Status run(bool backward, const RunOptions& options) const {
    return backward ? attention_->run_backward(gradients_, options) : attention_->run(arguments_.views, options);
  }
  Status forward(Executor& executor) const { return run(false, {.executor = &executor}); }
  Status backward(Executor& executor) const { return run(true, {.executor = &executor}); }
  const std::vector<TensorView>& outputs(bool backward) const { return backward ? d_outputs_ : outputs_; }

 private:
  TensorView like(const TensorView& view) {
    return arguments_.dense(view.dtype, {view.sizes.begin(), view.sizes.begin() + view.rank}, random_);
  }

  Result<Attention> attention_;
  testing::Random random_;
  testing::OwnedArguments arguments_;
  BackwardArguments gradients_;
  std::vector<TensorView> outputs_;
  std::vector<TensorView> d_outputs_;
};

constexpr const char* kProblems[] = {
    "attn h2 s200 d64 f32",
    "attn h1 s1 d8 f32",
    "attn hq8 hkv2 sq1 skv4000 d64 bf16 lse",
    "attn hq8 hkv2 sq1 skv4000 d64 causal=bottom_right key_lengths lse",
    "attn h2 s300 d32 causal window=40 softcap=30 lse sinks=2",
    "attn b2 h2 s300 d32 segment_ids causal alibi lse",
    "attn b2 h2 s200 d32 mask=bool bias=f32 key_lengths lse row_max",
    "attn b2 hq4 hkv2 s200 d32 bf16 bias=bf16 logits=bf16 dropout=0.1 lse",
    "attn b2 hq8 hkv2 sq1 skv96 d64 page_size=16 key_lengths",
    "attn h2 s300 d16 lse score_mod(relative_position_table: f32[600], slopes: f32[2]) { %0 = sub kv, q; "
    "%1 = add %0, 300; %2 = load relative_position_table[%1]; %3 = load slopes[h]; %4 = mul %2, %3; "
    "%5 = add score, %4; return %5 }",
};

Problem block_list_problem() {
  Problem problem = *parse_problem("attn h2 s256 d32 causal lse");
  const BlockKinds kinds{.q_block = 64, .kv_block = 64, .shape = {1, 1, 4, 4}, .kinds = std::vector<uint8_t>(16, 1)};
  EXPECT_TRUE(restrict_to_blocks(kinds, problem).ok());
  return problem;
}

std::vector<Problem> problems() {
  std::vector<Problem> all;
  for (const char* text : kProblems) {
    const Result<Problem> problem = parse_problem(text);
    EXPECT_TRUE(problem.ok()) << text << ": " << problem.error().message;
    all.push_back(*problem);
  }
  all.push_back(block_list_problem());
  return all;
}

TEST(Allocation, AWarmedCallAllocatesNothing) {
  for (const Problem& problem : problems()) {
    const Call call(problem);
    for (const int concurrency : {1, 4}) {
      for (int backward = 0; backward <= static_cast<int>(call.has_backward()); ++backward) {
        InlineExecutor executor(concurrency);
        const auto run = [&] { return backward != 0 ? call.backward(executor) : call.forward(executor); };
        const Status first = run();
        ASSERT_TRUE(first.ok()) << first.error().message;
        const int64_t before = testing::allocation_count();
        EXPECT_TRUE(run().ok());
        EXPECT_EQ(testing::allocation_count() - before, 0)
            << print(problem) << (backward != 0 ? ", backward, " : ", forward, ") << concurrency << " workers";
      }
    }
  }
}

// Masked pages need no place in memory: engines fill a table behind a sequence's end with -1.
TEST(Allocation, AWarmedCallWithMissingPagesAllocatesNothing) {
  const Problem problem = *parse_problem("attn b2 hq8 hkv2 sq1 skv96 d64 page_size=16 key_lengths");
  const Result<Attention> attention = Attention::compile(problem);
  testing::Random random(1);
  const testing::OwnedArguments arguments = testing::dense_arguments(problem, random);
  std::fill_n(static_cast<int32_t*>(arguments.views.captures[0].data), 2, 20);
  std::fill_n(static_cast<int32_t*>(arguments.views.page_table->data), 12, -1);
  for (const int entry : {0, 1, 6, 7}) {
    static_cast<int32_t*>(arguments.views.page_table->data)[entry] = 0;
  }
  const Status first = attention->run(arguments.views);
  ASSERT_TRUE(first.ok()) << first.error().message;
  const int64_t before = testing::allocation_count();
  EXPECT_TRUE(attention->run(arguments.views).ok());
  EXPECT_EQ(testing::allocation_count() - before, 0);
}

void fill_with(const std::vector<TensorView>& views, int byte) {
  for (const TensorView& view : views) {
    std::memset(view.data, byte, static_cast<size_t>(view.element_count()) * size_in_bytes(view.dtype));
  }
}

bool holds_only(const std::vector<TensorView>& views, int byte) {
  for (const TensorView& view : views) {
    const auto* bytes = static_cast<const unsigned char*>(view.data);
    for (size_t i = 0; i < static_cast<size_t>(view.element_count()) * size_in_bytes(view.dtype); ++i) {
      if (bytes[i] != byte) {
        return false;
      }
    }
  }
  return true;
}

// On a new thread, which holds no memory of earlier calls, each allocation of a call fails in turn: once it alone, and
// once it with all that follow.
TEST(AllocationFailure, IsAnErrorThatWritesNothingAndLeaksNothing) {
  for (const Problem& problem : problems()) {
    const Call call(problem);
    for (int backward = 0; backward <= static_cast<int>(call.has_backward()); ++backward) {
      InlineExecutor executor(3);
      const auto run = [&] { return backward != 0 ? call.backward(executor) : call.forward(executor); };
      const std::vector<TensorView>& outputs = call.outputs(backward != 0);
      ASSERT_TRUE(call.forward(executor).ok());
      ASSERT_TRUE(run().ok());  // compiles the backward
      for (const int64_t failures : {int64_t{1}, INT64_MAX}) {
        bool failed = true;
        for (int64_t granted = 0; failed; ++granted) {
          ASSERT_LT(granted, 1000);
          fill_with(outputs, 0x5a);
          const int64_t live = testing::live_allocations();
          std::thread([&] {
            const testing::FailAllocations failing(granted, failures);
            const Status status = run();
            failed = failing.any();
            ASSERT_EQ(status.ok(), !failed);
            if (failed) {
              EXPECT_EQ(status.error().kind, ErrorKind::kInternal);
              EXPECT_NE(status.error().message.find("memory"), std::string::npos) << status.error().message;
            }
          }).join();
          EXPECT_EQ(testing::live_allocations(), live) << print(problem) << ", allocation " << granted;
          ASSERT_TRUE(!failed || holds_only(outputs, 0x5a)) << print(problem) << ", allocation " << granted;
        }
      }
    }
  }
}

// Each of our own allocations during compilation fails in turn; a failure in LLVM's would end the process. Other
// threads that compile the same problem must not wait forever.
TEST(AllocationFailure, IsAnErrorOfCompilingToo) {
  const Problem problem = *parse_problem(
      "attn h2 s64 d16 lse score_mod(slopes: f32[2]) { %0 = load slopes[h]; %1 = mul %0, 1.2345; %2 = add score, %1; "
      "return %2 }");
  for (const int64_t failures : {int64_t{1}, INT64_MAX}) {
    bool failed = true;
    for (int64_t granted = 0; failed; ++granted) {
      ASSERT_LT(granted, 5000);
      std::thread([&] {
        std::optional<Result<Attention>> attention;
        {
          const testing::FailAllocations failing(granted, failures, testing::Whose::kThisProgram);
          attention.emplace(Attention::compile(problem));
          failed = failing.any();
        }
        ASSERT_TRUE(attention->ok() || failed);
        if (!attention->ok()) {
          EXPECT_EQ(attention->error().kind, ErrorKind::kInternal);
          EXPECT_NE(attention->error().message.find("memory"), std::string::npos) << attention->error().message;
        }
      }).join();
    }
    EXPECT_TRUE(Attention::compile(problem).ok());
  }
}

// The message about wrong arguments may find no memory, too.
TEST(AllocationFailure, OfAnErrorMessageIsAnError) {
  const Problem problem = *parse_problem("attn h1 s8 d8");
  const Result<Attention> attention = Attention::compile(problem);
  testing::Random random(1);
  testing::OwnedArguments arguments = testing::dense_arguments(problem, random);
  arguments.views.v.sizes[3] = 7;
  BackwardArguments gradients;
  gradients.forward = arguments.views;
  for (int backward = 0; backward < 2; ++backward) {
    bool failed = true;
    for (int64_t granted = 0; failed; ++granted) {
      Status status;
      {
        const testing::FailAllocations failing(granted, INT64_MAX);
        status = backward != 0 ? attention->run_backward(gradients) : attention->run(arguments.views);
        failed = failing.any();
      }
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().kind, failed ? ErrorKind::kInternal : ErrorKind::kInvalidArgument);
    }
  }
}

// Cancels the call when it reaches its n-th parallel section.
class Canceller : public InlineExecutor {
 public:
  explicit Canceller(int64_t section) : InlineExecutor(4), section_(section) {}
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    if (section_-- == 0) {
      cancelled.store(1);
    }
    InlineExecutor::parallel_for(count, body);
  }

  std::atomic<int32_t> cancelled{0};

 private:
  int64_t section_;
};

std::vector<std::vector<std::byte>> copies_of(const std::vector<TensorView>& views) {
  std::vector<std::vector<std::byte>> copies;
  for (const TensorView& view : views) {
    const auto* from = static_cast<const std::byte*>(view.data);
    copies.emplace_back(from, from + static_cast<size_t>(view.element_count()) * size_in_bytes(view.dtype));
  }
  return copies;
}

TEST(Cancellation, BeforeTheCallWritesNothing) {
  const std::atomic<int32_t> cancelled{1};
  for (const Problem& problem : problems()) {
    const Call call(problem);
    for (int backward = 0; backward <= static_cast<int>(call.has_backward()); ++backward) {
      const std::vector<TensorView>& outputs = call.outputs(backward != 0);
      fill_with(outputs, 0x5a);
      const Status status = call.run(backward != 0, {.cancelled = &cancelled});
      ASSERT_FALSE(status.ok());
      EXPECT_EQ(status.error().kind, ErrorKind::kCancelled);
      EXPECT_TRUE(holds_only(outputs, 0x5a));
    }
  }
}

TEST(Cancellation, WithinTheCallIsAnErrorAndTheNextCallIsRight) {
  for (const Problem& problem : problems()) {
    const Call call(problem);
    for (int backward = 0; backward <= static_cast<int>(call.has_backward()); ++backward) {
      const std::vector<TensorView>& outputs = call.outputs(backward != 0);
      InlineExecutor executor(4);
      ASSERT_TRUE(call.forward(executor).ok());
      ASSERT_TRUE(call.run(backward != 0, {.executor = &executor}).ok());
      const auto want = copies_of(outputs);
      const int64_t live = testing::live_allocations();
      for (int64_t section = 0; section < 6; ++section) {
        Canceller canceller(section);
        const Status status = call.run(backward != 0, {.executor = &canceller, .cancelled = &canceller.cancelled});
        // A call with few sections ends before that, and a call cancelled after its last products may return success.
        ASSERT_TRUE(status.ok() || (status.error().kind == ErrorKind::kCancelled && canceller.cancelled.load() != 0));
        ASSERT_TRUE(section > 0 || !status.ok() || canceller.cancelled.load() == 0) << print(problem);
      }
      EXPECT_EQ(testing::live_allocations(), live) << print(problem);
      ASSERT_TRUE(call.run(backward != 0, {.executor = &executor}).ok());
      EXPECT_EQ(copies_of(outputs), want) << print(problem);
    }
  }
}

}  // namespace
}  // namespace flashlift
