// Child processes of a process that computes, as Python's multiprocessing and data loaders create them.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <functional>
#include <thread>
#include <vector>

#include "flashlift/attention.h"
#include "support/beside.h"
#include "support/fork_guard.h"
#include "support/own_stack.h"
#include "support/tensors.h"

namespace flashlift {
namespace {

constexpr unsigned kSeconds = 300;  // a child that runs longer hangs

// Forward and backward on the library's own threads.
bool computes(const Problem& problem) {
  const Result<Attention> attention = Attention::compile(problem);
  if (!attention.ok()) {
    return false;
  }
  testing::Random random(1);
  testing::OwnedArguments arguments = testing::dense_arguments(problem, random);
  BackwardArguments gradients;
  gradients.forward = arguments.views;
  const auto like = [&](const TensorView& view) {
    return arguments.dense(view.dtype, {view.sizes.begin(), view.sizes.begin() + view.rank}, random);
  };
  gradients.d_out = like(arguments.views.out);
  gradients.d_q = like(arguments.views.q);
  gradients.d_k = like(arguments.views.k);
  gradients.d_v = like(arguments.views.v);
  return attention->run(arguments.views).ok() && attention->run_backward(gradients).ok();
}

// Each number gives another program, so that each is compiled.
Problem numbered(int number) {
  return *parse_problem("attn b2 h4 s256 d32 lse score_mod() { %0 = mul score, " + std::to_string(number) +
                        ".5; return %0 }");
}

int exit_code_of_child(const std::function<bool()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    _exit(body() ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

#if defined(__SANITIZE_ADDRESS__) && !defined(__clang__)
// About one child in thirty waits forever in its first allocation (__sanitizer::Mutex::Lock, by gdb).
constexpr bool kForksBesideThreads = false;
#else
constexpr bool kForksBesideThreads = true;
#endif
constexpr const char* kWhyNot =
    "the allocator of GCC's AddressSanitizer may be locked by another thread when a process forks";

// What a first call makes for all later ones, such as tables of names, may be half made when the process forks.
TEST(Fork, AChildComputesIfItsParentMakesItsFirstCall) {
  if (!kForksBesideThreads) {
    GTEST_SKIP() << kWhyNot;
  }
  // Each time in a new process: the calls of the tests before this one run in children. fork() itself takes some 100 us
  // until it copies the memory, so that the call begins after it, too. Later moments lie further apart.
  using std::chrono::microseconds;
  const auto wait = [](microseconds time) {
    for (const auto end = std::chrono::steady_clock::now() + time; std::chrono::steady_clock::now() < end;) {
    }
  };
  for (int after = -400; after < 100'000; after += std::max(5, after / 6)) {  // us from the call's begin to the fork
    EXPECT_EQ(exit_code_of_child([&] {
                std::atomic<bool> begins{false};
                bool computed = false;
                std::thread first([&] {
                  begins = true;
                  wait(microseconds(-after));
                  computed = computes(numbered(1));
                });
                while (!begins) {
                }
                wait(microseconds(after));
                const int code = exit_code_of_child([] { return computes(numbered(2)); });
                first.join();
                return computed && code == 0;
              }),
              0)
        << after;
  }
}

TEST(Fork, AChildComputesWhileThreadsOfItsParentDo) {
  if (!kForksBesideThreads) {
    GTEST_SKIP() << kWhyNot;
  }
  std::atomic<bool> ended{false};
  std::atomic<int> next{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] {
      while (!ended) {
        EXPECT_TRUE(computes(numbered(next++ % 50)));
      }
    });
  }
  while (next < 3) {
    std::this_thread::yield();
  }
  for (int i = 0; i < 10; ++i) {
    EXPECT_EQ(exit_code_of_child([&] { return computes(numbered(i)) && computes(numbered(1000 + i)); }), 0) << i;
    std::this_thread::sleep_for(std::chrono::milliseconds(7));
  }
  ended = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(Fork, ChildrenOfChildrenCompute) {
  EXPECT_TRUE(computes(numbered(1)));
  EXPECT_EQ(exit_code_of_child(
                [] { return computes(numbered(2)) && exit_code_of_child([] { return computes(numbered(3)); }) == 0; }),
            0);
}

// If fork() waited for that thread, it would wait until its limit, and the child could not compute.
TEST(Fork, DoesNotWaitForAThreadThatWorksWithinAnotherOnesSection) {
  std::atomic<bool> works{false};
  std::thread waits([&] {
    const UncutByFork uncut;
    EXPECT_TRUE(run_on_own_stack([&] {
                  works = true;
                  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // fork() begins in this time
                  const UncutByFork nested;
                }).ok());
  });
  while (!works) {
    std::this_thread::yield();
  }
  EXPECT_EQ(exit_code_of_child([] { return !was_cut_by_fork(); }), 0);
  waits.join();
}

TEST(Fork, DoesNotWaitForAThreadThatWorksBesideAnotherOnesSection) {
  std::atomic<bool> works{false};
  std::thread waits([&] {
    const UncutByFork uncut;
    begin_beside([&] {
      works = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(300));  // fork() begins in this time
      const UncutByFork nested;
    }).get();
  });
  while (!works) {
    std::this_thread::yield();
  }
  EXPECT_EQ(exit_code_of_child([] { return !was_cut_by_fork(); }), 0);
  waits.join();
}

}  // namespace
}  // namespace flashlift
