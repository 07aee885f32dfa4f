#include "cuda/launch/sections.h"

#include <algorithm>
#include <bit>

#include "cuda/kernels/common/key_ring.h"
#include "support/rounding.h"

namespace flashlift::cuda {
namespace {

bool is_narrow(const ForwardConfig& config) {
  constexpr int kNarrow = 64;
  return std::max(config.head_dim, config.value_dim) <= kNarrow;
}

// How many of a section's blocks there are for each multiprocessor, as measured (docs/lessons: cuda_forward.md, and
// cuda_portable.md).
int64_t blocks_per_multiprocessor(const HeadGroups& heads, const ForwardConfig& config) {
  if (config.kind == KernelKind::kPortable && config.dtype == DType::kF32) {
    return is_narrow(config) ? 8 : 1;
  }
  if (config.kind == KernelKind::kPortable) {
    // Heads of few blocks read memory all the time: of those, no more than a quarter as many as multiprocessors.
    constexpr int64_t kHeads = 4;
    const int64_t most = is_narrow(config) || config.blocks > 2 ? 4 : 2;
    return std::clamp<int64_t>(heads.blocks / kHeads, 1, most);
  }
  constexpr int kLargeTile = 128;
  return is_narrow(config) || config.q_tile > kLargeTile ? 3 : 1;
}

}  // namespace

int64_t groups_per_section(const HeadGroups& heads, const ForwardConfig& config, const Device& device) {
  if (!config.has_mask_mod && !is_narrow(config)) {
    return 1;
  }
  const int64_t cached = device.l2_bytes / std::max<int64_t>(heads.bytes, 1);
  const int64_t blocks = blocks_per_multiprocessor(heads, config) * device.multiprocessors;
  const int64_t together = std::min(cached, blocks / std::max<int64_t>(heads.blocks, 1));
  const int64_t sections = divide_up(heads.groups, std::max<int64_t>(together, 1));
  return divide_up(heads.groups, std::max<int64_t>(sections, 1));
}

namespace {

// Whether rings of heads of up to 96 columns are faster if blocks have many key tiles each: those of long heads. Tiles
// of 128 queries, which heads of up to 64 columns have, gain less, and only with 49 columns or more and without a
// score_mod.
bool has_rings_of_many(const ForwardConfig& config, int64_t key_tiles) {
  constexpr int64_t kLong = 32;
  constexpr int kTooNarrow = 48;
  const bool too_narrow = std::max(config.head_dim, config.value_dim) <= kTooNarrow;
  return key_tiles >= kLong && (config.kv_tile == 64 || !(too_narrow || config.has_score_mod));
}

}  // namespace

Rings choose_rings(int64_t heads, int64_t query_tiles, int64_t key_tiles, const Sm90BackwardKernel& kernel,
                   int multiprocessors) {
  constexpr int64_t kHeads = 4;  // at a time
  constexpr int64_t kSmallest = 8;
  constexpr int64_t kBusy = 95;  // percent of the multiprocessors, at least
  constexpr int64_t kNarrow = 96;
  constexpr int64_t kFewEach = 2;
  constexpr Rings kNone = {.key_tiles = 1, .heads = 0, .distance = kRingDistance};
  if (!kernel.rings || heads == 0 || key_tiles == 0 || query_tiles == 0) {
    return kNone;
  }
  const bool narrow = std::max(kernel.config.head_dim_padded, kernel.config.value_dim_padded) <= kNarrow;
  const bool large_tiles = kernel.config.kv_tile > 64;
  const bool few = heads * key_tiles <= kFewEach * multiprocessors;
  if (narrow && !few && !has_rings_of_many(kernel.config, key_tiles)) {
    return kNone;
  }
  // Few key tiles of tiles of 128 queries need long rings.
  const int distance = few && large_tiles ? 1 : kRingDistance;
  // Each key tile of a ring begins at another query tile.
  const int64_t most = std::min(int64_t{multiprocessors}, (query_tiles - 1) / distance + 1);
  const auto rings = [&](int64_t size) {
    return Rings{.key_tiles = static_cast<int>(size),
                 .heads = static_cast<int>(std::max(multiprocessors / size, int64_t{1})),
                 .distance = distance};
  };
  if (heads * key_tiles <= multiprocessors) {  // all at once
    return key_tiles >= kSmallest && key_tiles <= most ? rings(key_tiles) : kNone;
  }
  const int64_t wanted = std::min(std::max({multiprocessors / kHeads, multiprocessors / heads, int64_t{1}}), most);
  const int64_t rings_of_head = divide_up(key_tiles, wanted);
  const int64_t size = divide_up(key_tiles, rings_of_head);
  const int64_t at_once = std::min(multiprocessors / size, heads);
  const bool occupies = 100 * at_once * size >= kBusy * multiprocessors;
  // The rings of a head come one after the other. At the end, where few heads are left, that may take longer than key
  // tiles without rings do.
  const bool waits_at_end =
      large_tiles && !few && divide_up(heads, at_once) * rings_of_head > divide_up(heads * key_tiles, multiprocessors);
  return size >= kSmallest && occupies && !waits_at_end ? rings(size) : kNone;
}

namespace {

constexpr int64_t kSumSizes = 3;  // of sums of d_q: what the cache holds, since queries and d_out are read, too

// The largest power of two of heads whose sums of d_q fit so many bytes, or 0.
int64_t heads_that_fit(const Sm90BackwardKernel& kernel, int q_len, int64_t bytes) {
  const int64_t sums = int64_t{q_len} * kernel.config.head_dim_padded * static_cast<int64_t>(sizeof(float));
  return static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(bytes / std::max<int64_t>(sums, 1))));
}

// As measured (docs/lessons/cuda_backward.md).
int alternating_heads_by_roles(const Sm90BackwardKernel& kernel, int group, int q_len, int kv_len,
                               const Device& device) {
  constexpr int kHeads = 4;
  if (!kernel.ordered || !kernel.heads_take_turns) {  // in any order, in a sliding window, or if masks differ by head
    return kHeads;
  }
  constexpr int kLong = 4096;
  // Without a mask, as many as the clusters of two blocks compute at once. Under a mask, key tiles end at different
  // times, and more heads wait less.
  const int clusters = device.multiprocessors / 2;
  const auto key_tiles = static_cast<int>(divide_up(int64_t{kv_len}, kernel.config.q_tile));
  const int heads = kernel.config.has_mask_mod ? (q_len < kLong ? 4 * kHeads : 2 * kHeads)
                                               : std::clamp(clusters / std::max(key_tiles, 1), 2, 4 * kHeads);
  return std::max(heads / std::max(group / 2, 1), 1);
}

}  // namespace

int alternating_heads(const Sm80FusedKernel& kernel, int q_len) {
  constexpr int kLong = 4096;
  return !kernel.config.has_mask_mod && q_len >= kLong ? 4 : 16;
}

int alternating_heads(const Sm90BackwardKernel& kernel, int group, int q_len, int kv_len, const Device& device) {
  if (kernel.roles) {
    return alternating_heads_by_roles(kernel, group, q_len, kv_len, device);
  }
  if (kernel.ordered) {
    const bool take_turns = group > 1 && kernel.heads_take_turns;
    constexpr int64_t kQueryHeads = 64;
    const int64_t least = take_turns ? 4 : 8;
    int64_t heads = take_turns ? std::min(kQueryHeads / group, int64_t{16}) : 16;
    if (kernel.heads_take_turns) {
      heads = std::min(heads, heads_that_fit(kernel, q_len, device.l2_bytes));
    }
    if (kernel.heads_take_turns && !take_turns && kernel.config.kv_tile > 64) {
      constexpr int64_t kMostShort = 32;
      heads = std::max(heads, std::min(kMostShort, heads_that_fit(kernel, q_len, device.l2_bytes / kSumSizes)));
    }
    heads = std::max(heads, least);
    if (take_turns || !kernel.config.has_mask_mod) {
      return static_cast<int>(heads);
    }
    const int64_t key_tiles = divide_up(int64_t{std::max(q_len, kv_len)}, kernel.config.q_tile);
    const int64_t more = device.multiprocessors * 3 / 2 / std::max<int64_t>(key_tiles, 1);
    return static_cast<int>(std::max(heads, more));
  }
  constexpr unsigned kLeast = 4;
  const unsigned most = group > 1 && kernel.heads_take_turns ? 8 : 16;
  constexpr unsigned kQueries = 65536;
  const unsigned fit = std::bit_floor(kQueries / static_cast<unsigned>(std::max(q_len, 1)));
  return static_cast<int>(kernel.config.has_mask_mod ? std::clamp(fit, kLeast, most) : kLeast);
}

KeyOrder choose_key_order(const Sm90BackwardKernel& kernel, int64_t heads, int group, int q_len, int kv_len,
                          const Device& device) {
  constexpr int64_t kMost = 16;
  constexpr int64_t kBusy = 95;  // percent of the key tiles that run at once, at least
  const int64_t least = kernel.roles ? 2 : 1;
  const int64_t at_once = kernel.roles ? device.multiprocessors / 2 : device.multiprocessors;
  int64_t together = std::clamp(heads_that_fit(kernel, q_len, device.l2_bytes / kSumSizes), least, kMost);
  // Few heads: two sections, if one of them occupies the GPU.
  const int64_t key_tiles = divide_up(int64_t{kv_len}, kernel.config.q_tile);
  while (together >= heads && together > 1 && 100 * (together / 2) * key_tiles >= kBusy * at_once) {
    together /= 2;
  }
  if (!kernel.mirrors || together >= heads) {
    return {.heads = alternating_heads(kernel, group, q_len, kv_len, device), .mirrored = 0};
  }
  const int64_t sections = divide_up(heads, together);
  const int64_t section = divide_up(heads, sections);
  return {.heads = static_cast<int>(section), .mirrored = static_cast<int>((divide_up(heads, section) - 1) * section)};
}

}  // namespace flashlift::cuda
