#include "support/lazy.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

namespace flashlift {
namespace {

TEST(Lazy, MakesTheObjectOnceForAllThreads) {
  static constinit Lazy<std::string> lazy;
  std::atomic<int> made{0};
  std::vector<std::string*> objects(8);
  std::vector<std::thread> threads;
  for (std::string*& object : objects) {
    threads.emplace_back([&] {
      object = &lazy.get([&] {
        ++made;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return std::string("made");
      });
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(made, 1);
  for (const std::string* object : objects) {
    EXPECT_EQ(object, objects[0]);
  }
  EXPECT_EQ(*objects[0], "made");
}

TEST(Lazy, TriesAgainAfterAnException) {
  static constinit Lazy<const int> lazy;
  EXPECT_THROW(lazy.get([]() -> int { throw std::runtime_error("no"); }), std::runtime_error);
  EXPECT_EQ(lazy.get([] { return 3; }), 3);
  EXPECT_EQ(lazy.get([] { return 4; }), 3);
}

TEST(Lazy, MayNeedAnotherOne) {
  static constinit Lazy<const int> inner;
  static constinit Lazy<const int> outer;
  EXPECT_EQ(outer.get([] { return 1 + inner.get([] { return 2; }); }), 3);
}

// With a plain static object, the child would wait for ever.
TEST(Lazy, AChildHasTheObjectThatAnotherThreadMadeDuringFork) {
  static constinit Lazy<const int> lazy;
  static const auto get = [](std::atomic<bool>& is_making) {
    return lazy.get([&] {
      is_making = true;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));  // fork() begins in this time
      return 5;
    });
  };
  std::atomic<bool> is_making{false};
  std::thread makes([&] { get(is_making); });
  while (!is_making) {
    std::this_thread::yield();
  }
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    std::atomic<bool> makes_again{false};
    _exit(get(makes_again) == 5 && !makes_again ? 0 : 1);
  }
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  makes.join();
}

}  // namespace
}  // namespace flashlift
