// exit() while other threads compile, as in a server that compiles in the background.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "flashlift/attention.h"

namespace flashlift {
namespace {

constexpr unsigned kSeconds = 60;  // a child that runs longer hangs

// Each number gives another program, so that each is compiled.
Result<Attention> compile(int number) {
  return Attention::compile(
      *parse_problem("attn h1 s8 d8 score_mod() { %0 = mul score, " + std::to_string(number) + ".5; return %0 }"));
}

// The exit code of a child in which `body` calls exit(), or the negative number of the signal that ended it.
int ending_of(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(kSeconds);
    body();
    _exit(100);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

void sleep_for_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

TEST(Exit, WaitsForThreadsThatCompile) {
  for (int i = 0; i < 25; ++i) {
    EXPECT_EQ(ending_of([&] {
                for (int thread = 0; thread < 2; ++thread) {
                  std::thread([thread] {
                    for (int number = 0;; ++number) {
                      static_cast<void>(compile(100000 * thread + number));
                    }
                  }).detach();
                }
                sleep_for_ms(5 + 3 * i);
                std::exit(7);
              }),
              7)
        << i;
  }
}

// A pool that is joined when static objects are destroyed, and compiles until compilation fails.
struct Pool {
  std::thread thread;
  ~Pool() { thread.join(); }
};

TEST(Exit, LetsThreadsEndThatAreJoinedLater) {
  EXPECT_EQ(ending_of([] {
              static Pool pool;
              pool.thread = std::thread([] {
                for (int number = 0; compile(number).ok(); ++number) {
                }
              });
              sleep_for_ms(50);
              std::exit(7);
            }),
            7);
}

// LLVM's own static objects may already be destroyed. What is compiled can still be had again.
TEST(Exit, CompilesNothingAfterwards) {
  EXPECT_EQ(ending_of([] {
              std::atexit([] {
                const Result<Attention> attention = compile(1);
                const bool is_refused =
                    !attention.ok() && attention.error().message.find("exit()") != std::string::npos;
                if (!is_refused || !compile(0).ok()) {
                  _exit(1);
                }
              });
              static const Result<Attention> kept = compile(0);
              std::exit(7);
            }),
            7);
}

// Runs a compiled problem with a mask. False if the call fails or its result is wrong.
bool runs() {
  static const Result<Attention> attention = Attention::compile(*parse_problem("attn h2 s200 d8 causal segment_ids"));
  std::vector<float> in(2 * 200 * 8, 0.5f);
  std::vector<float> out(in.size());
  std::vector<int32_t> segments(200);
  constexpr int64_t kShape[] = {1, 2, 200, 8};
  constexpr int64_t kSegments[] = {1, 200};
  const TensorView input = dense_view(in.data(), DType::kF32, kShape);
  const TensorView segment = dense_view(segments.data(), DType::kI32, kSegments);
  const AttentionArguments arguments{.q = input,
                                     .k = input,
                                     .v = input,
                                     .out = dense_view(out.data(), DType::kF32, kShape),
                                     .captures = {segment, segment}};
  return attention.ok() && attention->run(arguments).ok() && std::abs(out.back() - 0.5f) < 1e-6f;
}

// The destructors of the main thread's thread-local objects have then run.
TEST(Exit, RunsCallsAfterwards) {
  EXPECT_EQ(ending_of([] {
              const bool ran = runs();  // before atexit(), so that the attention outlives what runs at the exit
              std::atexit([] { _exit(runs() && runs() ? 7 : 1); });
              std::exit(ran ? 100 : 1);
            }),
            7);
}

struct CallsAtEndOfThread {
  bool* ran;
  ~CallsAtEndOfThread() { *ran = runs() && runs(); }
};

TEST(Exit, RunsCallsInDestructorsOfOlderThreadLocalObjects) {
  bool ran = false;
  std::thread([&] {
    thread_local const CallsAtEndOfThread older{&ran};
    EXPECT_TRUE(older.ran == &ran && runs());
  }).join();
  EXPECT_TRUE(ran);
}

}  // namespace
}  // namespace flashlift
