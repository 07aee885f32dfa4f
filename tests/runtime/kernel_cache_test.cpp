#include "runtime/kernel_cache.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <new>
#include <thread>
#include <vector>

#include "support/error.h"

namespace flashlift::runtime {
namespace {

using Cache = KernelCache<int>;

TEST(KernelCache, CompilesOnceUnderConcurrentFirstCalls) {
  Cache cache(4);
  std::atomic<int> compiles{0};
  std::vector<std::thread> threads;
  std::atomic<int> right{0};
  for (int i = 0; i < 16; ++i) {
    threads.emplace_back([&] {
      const auto kernel = cache.get("key", [&]() -> Result<Cache::Handle> {
        ++compiles;
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return Cache::Handle(std::make_shared<int>(42));
      });
      right += kernel.ok() && **kernel == 42;
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(compiles, 1);
  EXPECT_EQ(right, 16);
}

TEST(KernelCache, DropsTheLeastRecentlyUsed) {
  Cache cache(2);
  int compiles = 0;
  const auto get = [&](const char* key) {
    return cache.get(key, [&]() -> Result<Cache::Handle> { return Cache::Handle(std::make_shared<int>(++compiles)); });
  };
  (void)get("a");
  (void)get("b");
  (void)get("a");
  (void)get("c");  // evicts b
  EXPECT_EQ(cache.size(), 2u);
  EXPECT_EQ(compiles, 3);
  (void)get("a");
  EXPECT_EQ(compiles, 3);
  (void)get("b");
  EXPECT_EQ(compiles, 4);
}

TEST(KernelCache, TriesAgainAfterAFailedCompile) {
  Cache cache(2);
  const auto failed = cache.get("a", []() -> Result<Cache::Handle> { return unsupported("not today"); });
  EXPECT_FALSE(failed.ok());
  EXPECT_EQ(cache.size(), 0u);
  const auto kernel = cache.get("a", []() -> Result<Cache::Handle> { return Cache::Handle(std::make_shared<int>(1)); });
  EXPECT_TRUE(kernel.ok());
}

TEST(KernelCache, OneOfThoseThatWaitCompilesWhereACompileThrows) {
  Cache cache(4);
  std::atomic<int> compiles{0};
  std::atomic<int> thrown{0};
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&] {
      try {
        const auto kernel = cache.get("key", [&]() -> Result<Cache::Handle> {
          std::this_thread::sleep_for(std::chrono::milliseconds(20));
          if (compiles++ < 3) {
            throw std::bad_alloc();
          }
          return Cache::Handle(std::make_shared<int>(42));
        });
        right += kernel.ok() && **kernel == 42;
      } catch (const std::bad_alloc&) {
        ++thrown;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(thrown, 3);
  EXPECT_EQ(right, 5);
  EXPECT_EQ(compiles, 4);
}

}  // namespace
}  // namespace flashlift::runtime
