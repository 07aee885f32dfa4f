#include "support/per_thread.h"

#include <gtest/gtest.h>

#include <thread>

namespace flashlift {
namespace {

int alive = 0;
int made = 0;

struct Counted {
  Counted() { ++alive, ++made; }
  ~Counted() { --alive; }
  int uses = 0;
};

int use() {
  static constinit thread_local PerThread<Counted> counted;
  return ++counted.get().uses;
}

TEST(PerThread, LivesAsLongAsItsThread) {
  made = 0;
  std::thread([] {
    EXPECT_EQ(use(), 1);
    EXPECT_EQ(use(), 2);
  }).join();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(made, 1);
}

struct UsesAtEndOfThread {
  ~UsesAtEndOfThread() { EXPECT_EQ(use(), 1); }
};

TEST(PerThread, IsMadeAnewByDestructorsOfOlderThreadLocalObjects) {
  made = 0;
  std::thread([] {
    thread_local const UsesAtEndOfThread older;
    [[maybe_unused]] const UsesAtEndOfThread* const made_first = &older;
    EXPECT_EQ(use(), 1);
  }).join();
  EXPECT_EQ(alive, 0);
  EXPECT_EQ(made, 2);
}

}  // namespace
}  // namespace flashlift
