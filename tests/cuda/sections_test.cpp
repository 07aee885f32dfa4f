// The order in which blocks process tiles.
#include "cuda/launch/sections.h"

#include <gtest/gtest.h>

#include "cuda/kernels/common/key_ring.h"

namespace flashlift::cuda {
namespace {

constexpr int kH100 = 132;

TEST(Sections, HaveAsManyBlocksAsRunAtOnce) {
  const Device h100 = {.multiprocessors = kH100, .l2_bytes = 50 << 20};
  struct Row {
    KernelKind kind;
    int depth, blocks;  // of the problem, and those that share a multiprocessor
    bool masks;
    int64_t heads, length;
    int query_tile;
    int64_t expected;
  };
  const KernelKind portable = KernelKind::kPortable;
  const KernelKind hopper = KernelKind::kHopper;
  for (const Row& row : {
           // One head after the other, but narrow ones.
           Row{portable, 128, 2, false, 64, 4096, 128, 1},
           Row{hopper, 128, 0, false, 64, 4096, 128, 1},
           Row{portable, 64, 2, false, 128, 4096, 128, 16},
           Row{hopper, 64, 0, false, 128, 4096, 192, 16},
           // Two blocks for each multiprocessor, or four.
           Row{portable, 128, 2, true, 64, 4096, 128, 8},
           Row{portable, 96, 2, true, 16, 16384, 128, 2},
           Row{portable, 192, 3, true, 64, 4096, 64, 8},
           Row{portable, 64, 2, true, 128, 4096, 128, 16},
           // Short heads have one.
           Row{portable, 128, 2, true, 1024, 256, 128, 64},
           // Of Hopper's kernel one, or three.
           Row{hopper, 128, 0, true, 64, 4096, 128, 4},
           Row{hopper, 256, 0, true, 32, 4096, 128, 4},
           Row{hopper, 96, 0, true, 64, 4096, 192, 16},
           Row{hopper, 128, 0, true, 32, 8192, 192, 8},
           // No more heads than fit into the L2 cache, and than there are.
           Row{portable, 64, 2, true, 64, 32768, 8192, 6},
           Row{portable, 128, 2, true, 3, 4096, 128, 3},
           Row{portable, 128, 2, true, 0, 4096, 128, 0},
           Row{portable, 128, 2, true, 4, 0, 128, 4},
       }) {
    const ForwardConfig config = {.kind = row.kind,
                                  .dtype = DType::kBF16,
                                  .head_dim = row.depth,
                                  .value_dim = row.depth,
                                  .q_tile = row.query_tile,
                                  .blocks = row.blocks,
                                  .has_mask_mod = row.masks};
    const HeadGroups heads = {.groups = row.heads,
                              .bytes = row.length * row.depth * 4,
                              .blocks = (row.length + row.query_tile - 1) / row.query_tile};
    EXPECT_EQ(groups_per_section(heads, config, h100), row.expected)
        << row.depth << " " << row.heads << " " << row.length;
  }
}

// The fused kernel for such heads: 128 queries at a time if they are narrow.
Sm90BackwardKernel of_columns(int columns) {
  Sm90BackwardKernel kernel;
  kernel.config.head_dim = kernel.config.value_dim = columns;
  kernel.config.head_dim_padded = kernel.config.value_dim_padded = columns;
  kernel.config.kv_tile = columns <= 64 ? 128 : 64;
  kernel.rings = true;
  return kernel;
}

TEST(AlternatingHeads, HaveSumsThatFitTheCache) {
  const Device h100 = {.multiprocessors = kH100, .l2_bytes = 50 << 20};
  struct Row {
    int columns, group, length;
    bool masks, slides;
    int expected;
  };
  for (const Row& row : {
           Row{128, 1, 4096, true, false, 16},
           Row{128, 1, 8192, true, false, 8},
           Row{128, 1, 16384, true, false, 8},
           Row{64, 1, 8192, true, false, 16},
           Row{64, 1, 16384, true, false, 8},
           Row{96, 1, 16384, false, false, 8},
           // Of a window, few sums are in use.
           Row{128, 1, 16384, true, true, 16},
           Row{128, 4, 16384, true, true, 16},
           // Query heads that share keys.
           Row{128, 4, 4096, true, false, 16},
           Row{128, 4, 8192, true, false, 8},
           Row{128, 4, 65536, true, false, 4},
           Row{128, 8, 1024, false, false, 8},
           Row{128, 64, 1024, true, false, 4},
           // More of short ones, if they differ in length.
           Row{128, 1, 1024, true, false, 24},
           Row{128, 1, 1024, false, false, 16},
           Row{128, 1, 0, true, false, 198},
           // More of short ones with tiles of 128 queries, if the cache holds three times their sums.
           Row{64, 1, 1024, false, false, 32},
           Row{64, 1, 2048, true, false, 32},
           Row{64, 1, 4096, false, false, 16},
           Row{64, 1, 256, true, false, 99},
           Row{64, 1, 1024, false, true, 16},
           Row{64, 4, 1024, false, false, 16},
           Row{96, 1, 1024, false, false, 16},
       }) {
    Sm90BackwardKernel kernel = of_columns(row.columns);
    kernel.config.q_tile = 128;
    kernel.config.kv_tile = row.columns <= 64 ? 128 : 64;
    kernel.config.has_mask_mod = row.masks;
    kernel.heads_take_turns = !row.slides;
    EXPECT_EQ(alternating_heads(kernel, row.group, row.length, row.length, h100), row.expected)
        << row.columns << " " << row.group << " " << row.length << " " << row.masks << " " << row.slides;
  }
}

TEST(AlternatingHeads, OfTheKernelByRoles) {
  const Device h100 = {.multiprocessors = kH100, .l2_bytes = 50 << 20};
  struct Row {
    int group, length;
    bool masks, slides, ordered;
    int expected;
  };
  for (const Row& row :
       {// All key tiles of whole heads at once.
        Row{1, 512, false, false, true, 16}, Row{1, 1024, false, false, true, 8}, Row{1, 2048, false, false, true, 4},
        Row{1, 16384, false, false, true, 2}, Row{1, 0, false, false, true, 16},
        // Under a mask.
        Row{1, 1024, true, false, true, 16}, Row{1, 4096, true, false, true, 8}, Row{1, 4096, true, true, true, 4},
        // Query heads that share keys.
        Row{2, 1024, false, false, true, 8}, Row{4, 1024, false, false, true, 4}, Row{4, 4096, true, false, true, 4},
        Row{16, 4096, true, false, true, 1}, Row{64, 16384, false, false, true, 1},
        // In any order.
        Row{1, 1024, true, false, false, 4}, Row{4, 16384, false, false, false, 4}}) {
    Sm90BackwardKernel kernel = of_columns(192);
    kernel.config.q_tile = 128;
    kernel.config.has_mask_mod = row.masks;
    kernel.heads_take_turns = !row.slides;
    kernel.ordered = row.ordered;
    kernel.roles = true;
    EXPECT_EQ(alternating_heads(kernel, row.group, row.length, row.length, h100), row.expected)
        << row.group << " " << row.length << " " << row.masks << " " << row.ordered;
  }
}

// Half a GPU's key tiles at once by roles, since two blocks share one.
TEST(KeyOrder, MirrorsAllSectionsButTheLast) {
  const Device h100 = {.multiprocessors = kH100, .l2_bytes = 50 << 20};
  struct Row {
    int columns;
    int64_t heads;
    int length, section, mirrored;
  };
  for (const Row& row :
       {// As many heads as fit the cache.
        Row{128, 16, 16384, 2, 14}, Row{128, 32, 8192, 4, 28}, Row{128, 64, 4096, 8, 56}, Row{96, 16, 16384, 2, 14},
        Row{96, 64, 4096, 8, 56}, Row{128, 8, 65536, 1, 7}, Row{192, 64, 4096, 4, 60}, Row{192, 16, 16384, 2, 14},
        // Not more of short ones, and sections of about equal size.
        Row{128, 512, 512, 16, 496}, Row{128, 20, 4096, 7, 14}, Row{128, 17, 512, 9, 9},
        // Few heads.
        Row{128, 8, 4096, 4, 4}, Row{128, 4, 8192, 2, 2}, Row{128, 2, 32768, 1, 1}, Row{192, 4, 4096, 2, 2},
        Row{128, 3, 4096, 16, 0}, Row{128, 1, 16384, 8, 0}, Row{128, 16, 512, 49, 0}, Row{128, 0, 512, 49, 0}}) {
    Sm90BackwardKernel kernel = of_columns(row.columns);
    kernel.config.q_tile = 128;
    kernel.config.has_mask_mod = true;
    kernel.heads_take_turns = true;
    kernel.roles = row.columns > 128;
    kernel.mirrors = true;
    const KeyOrder order = choose_key_order(kernel, row.heads, 1, row.length, row.length, h100);
    EXPECT_EQ(order.heads, row.section) << row.columns << " " << row.heads << " " << row.length;
    EXPECT_EQ(order.mirrored, row.mirrored) << row.columns << " " << row.heads << " " << row.length;
    kernel.mirrors = false;
    EXPECT_EQ(choose_key_order(kernel, row.heads, 1, row.length, row.length, h100).mirrored, 0);
  }
}

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
    const Rings rings =
        choose_rings(row.heads, (row.q_len + 63) / 64, (row.kv_len + 127) / 128, of_columns(128), kH100);
    EXPECT_EQ(rings.key_tiles, row.key_tiles) << row.heads << " " << row.q_len << " " << row.kv_len;
    EXPECT_EQ(rings.heads, row.together) << row.heads << " " << row.q_len << " " << row.kv_len;
  }
}

TEST(Rings, OfNarrowHeadsAreForFewKeyTilesOrLongHeads) {
  struct Row {
    int columns;
    int64_t heads, length;
    int key_tiles;
  };
  for (const Row& row : {Row{64, 16, 1024, 8}, Row{64, 32, 1024, 8}, Row{64, 34, 1024, 1}, Row{64, 1, 16384, 128},
                         Row{96, 16, 1024, 8}, Row{96, 8, 2048, 16}, Row{96, 64, 1024, 1}, Row{96, 64, 4096, 32},
                         Row{96, 16, 16384, 32}, Row{64, 64, 4096, 16}, Row{64, 9, 4096, 1}, Row{64, 16, 16384, 32},
                         Row{64, 64, 2048, 1}, Row{48, 16, 16384, 1}, Row{128, 64, 1024, 8}}) {
    const Sm90BackwardKernel kernel = of_columns(row.columns);
    const int64_t query_tiles = row.length / kernel.config.kv_tile;
    EXPECT_EQ(choose_rings(row.heads, query_tiles, row.length / 128, kernel, kH100).key_tiles, row.key_tiles)
        << row.columns << " " << row.heads << " " << row.length;
  }
  Sm90BackwardKernel modified = of_columns(64);
  modified.config.has_score_mod = true;
  EXPECT_EQ(choose_rings(16, 128, 128, modified, kH100).key_tiles, 1);
  EXPECT_EQ(choose_rings(1, 128, 128, modified, kH100).key_tiles, 128);
  Sm90BackwardKernel none = of_columns(128);
  none.rings = false;
  EXPECT_EQ(choose_rings(16, 16, 8, none, kH100).key_tiles, 1);
}

// The kernel relies on it: each key tile of a ring begins at a query tile of its own.
TEST(Rings, BeginAtDifferentQueries) {
  for (const int multiprocessors : {1, 7, 78, 114, 132}) {
    for (int64_t heads = 1; heads < 40; heads += 3) {
      for (int64_t query_tiles = 1; query_tiles < 300; query_tiles += 7) {
        for (int64_t key_tiles = 1; key_tiles < 300; key_tiles += 11) {
          for (const int columns : {64, 96, 128}) {
            const Sm90BackwardKernel kernel = of_columns(columns);
            const Rings rings = choose_rings(heads, query_tiles, key_tiles, kernel, multiprocessors);
            ASSERT_GE(rings.key_tiles, 1);
            ASSERT_LE(rings.key_tiles, multiprocessors);
            ASSERT_LE(rings.key_tiles, key_tiles);
            ASSERT_LT(rings.distance * (rings.key_tiles - 1), query_tiles);
            ASSERT_TRUE(rings.key_tiles == 1 || rings.heads >= 1);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace flashlift::cuda
