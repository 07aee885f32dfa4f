// The order in which key tiles of a ring add to d_q.
#include "cuda/kernels/common/key_ring.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <utility>
#include <vector>

namespace flashlift::cuda {
namespace {

struct Sizes {
  int heads, key_tiles, ring_tiles, steps;
};

// Calls check(sizes) for small sizes and some large ones. Each key tile of a ring has a step of its own to begin at.
template <typename Check>
void for_each_size(int distance, const Check& check) {
  for (int key_tiles = 1; key_tiles <= 12; ++key_tiles) {
    for (int ring_tiles = 1; ring_tiles <= key_tiles; ++ring_tiles) {
      const int least = distance * (ring_tiles - 1) + 1;
      for (const int steps : {least, least + 1, least + 2, least + 17}) {
        check(Sizes{1 + steps % 3, key_tiles, ring_tiles, steps});
      }
    }
  }
  check(Sizes{4, 128, 32, 256});
  check(Sizes{1, 132, 132, 263});
  check(Sizes{3, 157, 32, 313});
}

// The ring of each key tile of a head.
std::vector<KeyRing> rings_of_a_head(int distance, const Sizes& sizes) {
  std::vector<KeyRing> rings(static_cast<size_t>(sizes.key_tiles));
  for (int index = 0; index < sizes.heads * sizes.key_tiles; ++index) {
    const RingIndex at = ring_index(index, sizes.heads, sizes.key_tiles, sizes.ring_tiles, distance);
    if (at.head == 0) {
      rings[static_cast<size_t>(at.ring.first + at.ring.place)] = at.ring;
    }
  }
  return rings;
}

class KeyRings : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Distances, KeyRings, ::testing::Values(1, kRingDistance));

TEST_P(KeyRings, HasEachKeyTileOfEachHeadOnce) {
  const int distance = GetParam();
  for_each_size(distance, [&](const Sizes& sizes) {
    std::set<std::pair<int, int>> found;
    std::map<std::pair<int, int>, std::vector<int>> indices;  // of a head's ring
    const int count = sizes.heads * sizes.key_tiles;
    for (int index = 0; index < count; ++index) {
      const RingIndex at = ring_index(index, sizes.heads, sizes.key_tiles, sizes.ring_tiles, distance);
      ASSERT_TRUE(at.head >= 0 && at.head < sizes.heads);
      ASSERT_TRUE(at.ring.place >= 0 && at.ring.place < at.ring.size && at.ring.size <= sizes.ring_tiles);
      ASSERT_TRUE(at.ring.size == sizes.ring_tiles || at.ring.first + at.ring.size == sizes.key_tiles);
      found.insert({at.head, at.ring.first + at.ring.place});
      indices[{at.head, at.ring.first}].push_back(index);
      ASSERT_EQ(at.end - index, at.ring.size - at.ring.place);
    }
    ASSERT_EQ(found.size(), static_cast<size_t>(count));
    // Blocks take the key tiles of a ring one after the other, so that few blocks are enough for it.
    for (const auto& [ring, members] : indices) {
      ASSERT_EQ(members.back() - members.front(), static_cast<int>(members.size()) - 1);
    }
  });
}

TEST_P(KeyRings, OrdersAllKeyTilesAtEachStep) {
  const int distance = GetParam();
  for_each_size(distance, [&](const Sizes& sizes) {
    const std::vector<KeyRing> rings = rings_of_a_head(distance, sizes);
    for (int step = 0; step < sizes.steps; ++step) {
      std::map<int, int> next;  // by the key tile before
      std::vector<int> final_ones;
      for (int key_tile = 0; key_tile < sizes.key_tiles; ++key_tile) {
        const KeyRing& ring = rings[static_cast<size_t>(key_tile)];
        ASSERT_TRUE(next.emplace(ring.previous(sizes.ring_tiles, step), key_tile).second);
        if (ring.is_final(sizes.key_tiles, step)) {
          final_ones.push_back(key_tile);
        }
      }
      int last = -1;
      int count = 0;
      for (auto at = next.find(last); at != next.end() && count <= sizes.key_tiles; at = next.find(last)) {
        last = at->second;
        ++count;
      }
      ASSERT_EQ(count, sizes.key_tiles);
      ASSERT_EQ(final_ones, std::vector<int>{last});
    }
  });
}

// If all key tiles of a ring are processed at once, none waits forever: what it waits for comes earlier in this order.
// And before it continues at the last queries, it waits only for key tiles that blocks took before it.
TEST_P(KeyRings, WaitsForWhatComesEarlier) {
  const int distance = GetParam();
  for_each_size(distance, [&](const Sizes& sizes) {
    const std::vector<KeyRing> rings = rings_of_a_head(distance, sizes);
    const auto time = [&](int key_tile, int step) {
      const KeyRing& ring = rings[static_cast<size_t>(key_tile)];
      return std::pair(ring.first, (step - ring.start() + sizes.steps) % sizes.steps);
    };
    for (int key_tile = 0; key_tile < sizes.key_tiles; ++key_tile) {
      const KeyRing& ring = rings[static_cast<size_t>(key_tile)];
      ASSERT_TRUE(ring.start() >= 0 && ring.start() < sizes.steps);
      for (int step = 0; step < sizes.steps; ++step) {
        const int previous = ring.previous(sizes.ring_tiles, step);
        if (previous < 0) {
          continue;
        }
        ASSERT_LT(time(previous, step), time(key_tile, step));
        if (step >= ring.start()) {
          ASSERT_LT(previous, key_tile);
        }
      }
    }
  });
}

}  // namespace
}  // namespace flashlift::cuda
