// The order in which blocks process tiles.
#include "cuda/launch/sections.h"

#include <gtest/gtest.h>

#include "cuda/kernels/common/key_ring.h"

namespace flashlift::cuda {
namespace {

constexpr int kH100 = 132;

TEST(Rings, OccupyTheGpu) {
  struct Row {
    int64_t heads, q_len, kv_len;
    int key_tiles, together;
  };
  for (const Row& row : {Row{64, 4096, 4096, 32, 4}, Row{16, 16384, 16384, 32, 4}, Row{128, 2048, 2048, 16, 8},
                         Row{256, 1024, 1024, 8, 16},
                         // All key tiles at once.
                         Row{16, 1024, 1024, 8, 16}, Row{1, 16384, 16384, 128, 1}, Row{3, 5000, 5000, 40, 3},
                         // Few heads have large rings.
                         Row{2, 16384, 16384, 64, 2}, Row{1, 32768, 32768, 128, 1},
                         // Rings of 40, 24 or 27 key tiles would leave too many multiprocessors idle.
                         Row{48, 5000, 5000, 1, 0}, Row{80, 3072, 3072, 1, 0}, Row{16, 10240, 10240, 1, 0},
                         // Too few key tiles, or queries.
                         Row{512, 512, 512, 1, 0}, Row{64, 64, 4096, 1, 0}, Row{64, 4096, 128, 1, 0},
                         Row{0, 100, 100, 1, 0}, Row{4, 0, 100, 1, 0}, Row{4, 100, 0, 1, 0}}) {
    const Rings rings = choose_rings(row.heads, (row.q_len + 63) / 64, (row.kv_len + 127) / 128, kH100);
    EXPECT_EQ(rings.key_tiles, row.key_tiles) << row.heads << " " << row.q_len << " " << row.kv_len;
    EXPECT_EQ(rings.heads, row.together) << row.heads << " " << row.q_len << " " << row.kv_len;
  }
}

// The kernel relies on it: each key tile of a ring begins at a query tile of its own.
TEST(Rings, BeginAtDifferentQueries) {
  for (const int multiprocessors : {1, 7, 78, 114, 132}) {
    for (int64_t heads = 1; heads < 40; heads += 3) {
      for (int64_t query_tiles = 1; query_tiles < 300; query_tiles += 7) {
        for (int64_t key_tiles = 1; key_tiles < 300; key_tiles += 11) {
          const Rings rings = choose_rings(heads, query_tiles, key_tiles, multiprocessors);
          ASSERT_GE(rings.key_tiles, 1);
          ASSERT_LE(rings.key_tiles, multiprocessors);
          ASSERT_LE(rings.key_tiles, key_tiles);
          ASSERT_LT(kRingDistance * (rings.key_tiles - 1), query_tiles);
          ASSERT_TRUE(rings.key_tiles == 1 || rings.heads >= 1);
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlift::cuda
