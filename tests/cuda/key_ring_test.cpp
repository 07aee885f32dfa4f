// The order in which key tiles of a ring add to d_q.
#include "cuda/kernels/common/key_ring.h"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <type_traits>
#include <utility>
#include <vector>

namespace flashlift::cuda {
namespace {

struct Sizes {
  int heads, key_tiles, ring_tiles, steps;
};

// Calls check(sizes) for small sizes and some large ones. Each key tile of a ring has a step of its own to begin at.
template <int kDistance, typename Check>
void for_each_size(const Check& check) {
  for (int key_tiles = 1; key_tiles <= 12; ++key_tiles) {
    for (int ring_tiles = 1; ring_tiles <= key_tiles; ++ring_tiles) {
      const int least = kDistance * (ring_tiles - 1) + 1;
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
template <int kDistance>
std::vector<KeyRing<kDistance>> rings_of_a_head(const Sizes& sizes) {
  std::vector<KeyRing<kDistance>> rings(static_cast<size_t>(sizes.key_tiles));
  for (int index = 0; index < sizes.heads * sizes.key_tiles; ++index) {
    const auto at = ring_index<kDistance>(index, sizes.heads, sizes.key_tiles, sizes.ring_tiles);
    if (at.head == 0) {
      rings[static_cast<size_t>(at.ring.first + at.ring.place)] = at.ring;
    }
  }
  return rings;
}

// Of tiles of 64 and of 128 queries.
template <typename Distance>
class KeyRings : public ::testing::Test {};
using Distances =
    ::testing::Types<std::integral_constant<int, ring_distance(64)>, std::integral_constant<int, ring_distance(128)>>;
TYPED_TEST_SUITE(KeyRings, Distances);

TYPED_TEST(KeyRings, HasEachKeyTileOfEachHeadOnce) {
  constexpr int kDistance = TypeParam::value;
  for_each_size<kDistance>([](const Sizes& sizes) {
    std::set<std::pair<int, int>> found;
    std::map<std::pair<int, int>, std::vector<int>> indices;  // of a head's ring
    const int count = sizes.heads * sizes.key_tiles;
    for (int index = 0; index < count; ++index) {
      const auto at = ring_index<kDistance>(index, sizes.heads, sizes.key_tiles, sizes.ring_tiles);
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

TYPED_TEST(KeyRings, OrdersAllKeyTilesAtEachStep) {
  constexpr int kDistance = TypeParam::value;
  for_each_size<kDistance>([](const Sizes& sizes) {
    const std::vector<KeyRing<kDistance>> rings = rings_of_a_head<kDistance>(sizes);
    for (int step = 0; step < sizes.steps; ++step) {
      std::map<int, int> next;  // by the key tile before
      std::vector<int> final_ones;
      for (int key_tile = 0; key_tile < sizes.key_tiles; ++key_tile) {
        const KeyRing<kDistance>& ring = rings[static_cast<size_t>(key_tile)];
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
TYPED_TEST(KeyRings, WaitsForWhatComesEarlier) {
  constexpr int kDistance = TypeParam::value;
  for_each_size<kDistance>([](const Sizes& sizes) {
    const std::vector<KeyRing<kDistance>> rings = rings_of_a_head<kDistance>(sizes);
    const auto time = [&](int key_tile, int step) {
      const KeyRing<kDistance>& ring = rings[static_cast<size_t>(key_tile)];
      return std::pair(ring.first, (step - ring.start() + sizes.steps) % sizes.steps);
    };
    for (int key_tile = 0; key_tile < sizes.key_tiles; ++key_tile) {
      const KeyRing<kDistance>& ring = rings[static_cast<size_t>(key_tile)];
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
