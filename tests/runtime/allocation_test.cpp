// A warmed call without a mask allocates nothing (with one, deriving the visited tiles takes a few small blocks). Its
// own program, since it replaces operator new.
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <new>
#include <thread>

#include "flashlift/attention.h"
#include "support/tensors.h"

namespace {
std::atomic<long> allocations{0};
}

// Not inlined: g++ would see malloc's memory given to delete, and warn.
[[gnu::noinline]] void* operator new(std::size_t size) {
  ++allocations;
  if (void* memory = std::malloc(size)) {
    return memory;
  }
  throw std::bad_alloc();
}
[[gnu::noinline]] void operator delete(void* memory) noexcept { std::free(memory); }
[[gnu::noinline]] void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }

namespace flashlift {
namespace {

class InlineExecutor : public Executor {
 public:
  int concurrency() const override { return 1; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    for (int64_t i = 0; i < count; ++i) {
      body(i);
    }
  }
};

TEST(Allocation, AWarmedCallWithoutMaskAllocatesNothing) {
  for (const char* text : {"attn h2 s200 d64 f32", "attn h1 s1 d8 f32", "attn hq8 hkv2 sq1 skv4000 d64 bf16 lse"}) {
    const Problem problem = *parse_problem(text);
    testing::Random random(1);
    testing::OwnedArguments arguments = testing::dense_arguments(problem, random);
    const Result<Attention> attention = Attention::compile(problem);
    ASSERT_TRUE(attention.ok());
    InlineExecutor executor;
    ASSERT_TRUE(attention->run(arguments.views, {.executor = &executor}).ok());
    const long before = allocations;
    ASSERT_TRUE(attention->run(arguments.views, {.executor = &executor}).ok());
    EXPECT_EQ(allocations - before, 0) << text;
  }
}

}  // namespace
}  // namespace flashlift
