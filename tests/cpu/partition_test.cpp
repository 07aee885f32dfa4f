#include "cpu/partition.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

namespace flashlift::cpu {
namespace {

TEST(Partition, CoversEveryScoreOnce) {
  for (const int64_t batch : {0, 1, 2}) {
    for (const int64_t group : {1, 3, 4}) {
      for (const int64_t q_len : {0, 1, 5, 47, 48, 49, 500, 2000}) {
        for (const int64_t kv_len : {0, 1, 300, 5000}) {
          for (const int concurrency : {1, 2, 64}) {
            const CallSizes sizes{batch, 2 * group, 2, q_len, kv_len};
            const Partition partition(sizes, {.q_tile = 480}, concurrency);
            // Keys seen by each row.
            std::vector<int64_t> keys(static_cast<size_t>(batch * sizes.q_heads * q_len), 0);
            for (int64_t i = 0; i < partition.tasks(); ++i) {
              const Task task = partition.task(i);
              ASSERT_LE(task.rows(), partition.tile_rows());
              ASSERT_LE(task.rows(), 480);
              ASSERT_EQ(task.h_begin / group, task.g);
              ASSERT_EQ((task.h_begin + task.h_count - 1) / group, task.g);
              int64_t keys_of_task = 0;
              for (int64_t block = task.split; block * 128 < kv_len; block += task.splits) {
                keys_of_task += std::min<int64_t>(kv_len - block * 128, 128);
              }
              for (int64_t h = task.h_begin; h < task.h_begin + task.h_count; ++h) {
                for (int64_t q = task.q_begin; q < task.q_begin + task.q_count; ++q) {
                  keys[static_cast<size_t>((task.b * sizes.q_heads + h) * q_len + q)] += keys_of_task;
                }
              }
            }
            ASSERT_TRUE(std::all_of(keys.begin(), keys.end(), [&](int64_t n) { return n == kv_len; }));
          }
        }
      }
    }
  }
}

TEST(Partition, SplitsOfTheKeysDoNotDependOnTheThreads) {
  const CallSizes decode{1, 32, 8, 1, 16384};
  EXPECT_GT(Partition(decode, {.q_tile = 480}, 2).splits(), 1);
  EXPECT_EQ(Partition(decode, {.q_tile = 480}, 2).splits(), Partition(decode, {.q_tile = 480}, 64).splits());
  EXPECT_EQ(Partition({1, 8, 8, 4096, 4096}, {.q_tile = 480}, 64).splits(), 1);
}

TEST(Partition, AsManySplitsAsTheConfigurationAsksFor) {
  const CallSizes decode{1, 32, 8, 1, 16384};
  EXPECT_EQ(Partition(decode, {.splits = 1}, 2).splits(), 1);
  EXPECT_EQ(Partition(decode, {.splits = 16}, 2).splits(), 16);
  EXPECT_EQ(Partition({1, 32, 8, 1, 300}, {.splits = 16}, 2).splits(), 3);  // whole blocks of keys
  EXPECT_EQ(Partition({1, 8, 8, 4096, 4096}, {.splits = 16}, 2).splits(), 1);
}

}  // namespace
}  // namespace flashlift::cpu
