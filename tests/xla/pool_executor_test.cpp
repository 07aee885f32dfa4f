#include "xla/ffi/pool_executor.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>
#include <vector>

namespace flashlift::xla {
namespace {

TEST(PoolExecutor, RunsEveryIndexOnce) {
  std::vector<std::jthread> threads;
  PoolExecutor executor(4, [&](std::function<void()> task) { threads.emplace_back(std::move(task)); });
  std::vector<std::atomic<int>> seen(1000);
  executor.parallel_for(1000, [&](int64_t i) { ++seen[static_cast<size_t>(i)]; });
  for (const auto& count : seen) {
    EXPECT_EQ(count, 1);
  }
  EXPECT_EQ(threads.size(), 3u);  // the caller is the fourth
}

// A pool whose threads are all busy, perhaps in this same call, starts no task before the call returns.
TEST(PoolExecutor, NeedsNoTaskToStart) {
  std::vector<std::function<void()>> waiting;
  PoolExecutor executor(4, [&](std::function<void()> task) { waiting.push_back(std::move(task)); });
  int ran = 0;
  executor.parallel_for(10, [&](int64_t) { ++ran; });
  EXPECT_EQ(ran, 10);
  EXPECT_EQ(waiting.size(), 3u);
  for (const auto& task : waiting) {
    task();  // too late: must not touch the finished call
  }
  EXPECT_EQ(ran, 10);
}

TEST(PoolExecutor, AsksForNoMoreThreadsThanIndices) {
  int scheduled = 0;
  PoolExecutor executor(8, [&](const std::function<void()>&) { ++scheduled; });
  executor.parallel_for(3, [](int64_t) {});
  EXPECT_EQ(scheduled, 2);
  executor.parallel_for(1, [](int64_t) {});
  EXPECT_EQ(scheduled, 2);
  executor.parallel_for(0, [](int64_t) { FAIL(); });
  EXPECT_EQ(scheduled, 2);
}

TEST(PoolExecutor, WaitsForOthersWork) {
  for (int round = 0; round < 200; ++round) {
    std::vector<std::jthread> threads;
    PoolExecutor executor(3, [&](std::function<void()> task) { threads.emplace_back(std::move(task)); });
    std::atomic<int> finished{0};
    executor.parallel_for(6, [&](int64_t) {
      std::this_thread::yield();
      ++finished;
    });
    EXPECT_EQ(finished, 6);
  }
}

}  // namespace
}  // namespace flashlift::xla
