#include "plan/cpu_variants.h"

#include <algorithm>

#include "cpu/partition.h"

namespace flashlift::plan {
namespace {

// The library's own choice (0), followed by the values that differ from it in effect.
std::vector<int64_t> up_to(int64_t most, std::initializer_list<int64_t> values) {
  std::vector<int64_t> kept{0};
  for (const int64_t value : values) {
    if (value <= most) {
      kept.push_back(value);
    }
  }
  return kept;
}

}  // namespace

std::vector<Tuning> cpu_variants(const Problem& problem, bool backward, const std::string& implementation,
                                 int concurrency) {
  constexpr int64_t kLeastKeys = 64;  // of each split, and of each block
  const int64_t rows = problem.q_heads / problem.kv_heads * problem.q_len;
  const bool decodes = rows <= cpu::kSplitMaxRows;
  const int64_t keys = problem.kv_len;
  const std::vector<int64_t> q_tiles =
      backward || decodes ? std::vector<int64_t>{0} : up_to(rows - 1, {96, 192, 384, 768});
  const std::vector<int64_t> kv_tiles = backward ? up_to(keys, {256, 512, 1024}) : up_to(keys, {64, 256, 512});
  const std::vector<int64_t> splits =
      backward || !decodes ? std::vector<int64_t>{0} : up_to(keys / kLeastKeys, {1, 2, 4, 8, 16, 32});
  std::vector<int64_t> threads{0};
  for (int64_t count = concurrency / 2; count >= 1; count /= 4) {
    threads.push_back(count);
  }
  std::vector<Tuning> variants;
  for (const int64_t q_tile : q_tiles) {
    for (const int64_t kv_tile : kv_tiles) {
      for (const int64_t split : splits) {
        for (const int64_t most : threads) {
          variants.push_back({.implementation = implementation,
                              .q_tile = q_tile,
                              .kv_tile = kv_tile,
                              .splits = split,
                              .threads = static_cast<int>(most)});
        }
      }
    }
  }
  std::ranges::stable_sort(variants, {}, [](const Tuning& one) {
    return (one.q_tile > 0) + (one.kv_tile > 0) + (one.splits > 0) + (one.threads > 0);
  });
  variants.erase(variants.begin());  // the library's own choice
  return variants;
}

}  // namespace flashlift::plan
