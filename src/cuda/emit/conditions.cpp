#include "cuda/emit/conditions.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "cuda/emit/motion.h"
#include "score/intervals.h"
#include "score/simplify.h"

namespace flashlift::cuda {
namespace {

// The condition that `difference` is at most `bound`.
QueryBound at_most(const Linear& difference, int bound) {
  const int64_t rest = difference.constant - bound;
  if (difference.q == 0) {
    return {QueryBound::Kind::kAny, difference.kv, rest};
  }
  return difference.q > 0 ? QueryBound{QueryBound::Kind::kLast, -difference.kv, -rest}
                          : QueryBound{QueryBound::Kind::kFirst, difference.kv, rest};
}

QueryBound at_least(const Linear& difference, int bound) {
  return at_most({-difference.q, -difference.kv, -difference.constant}, -bound);
}

// Which tiles of queries see some tiles of keys in the middle of a long sequence.
class VisitProbe {
 public:
  explicit VisitProbe(const Problem& problem) {
    const score::IntervalProgram::Domain domain = {.q_len = kLength, .kv_len = kLength};
    if (problem.mask_mod) {
      const Program plain = loading_conditions(*problem.mask_mod).empty()
                                ? *problem.mask_mod
                                : without_loading_conditions(*problem.mask_mod);
      if (plain.captures.empty()) {
        mask_.emplace(plain, std::span<const TensorView>(), domain);
      }
    }
    if (problem.score_mod && problem.score_mod->captures.empty()) {
      score_.emplace(*problem.score_mod, std::span<const TensorView>(), domain);
    }
  }

  // The last tile of queries that sees a tile of keys, from its own on. None: it is as good as the last of all.
  std::optional<int64_t> last_seen(int64_t key_tile) const {
    if (sees(key_tile, key_tile + kFarthest, kLength / kTile - 1)) {
      return std::nullopt;
    }
    int64_t tile = key_tile + kFarthest;
    while (tile > key_tile && !sees(key_tile, tile, tile)) {
      --tile;
    }
    return tile;
  }

  // The first one, up to its own. None: it is as good as the first of all.
  std::optional<int64_t> first_seen(int64_t key_tile) const {
    if (sees(key_tile, 0, key_tile - kFarthest)) {
      return std::nullopt;
    }
    int64_t tile = key_tile - kFarthest;
    while (tile < key_tile && !sees(key_tile, tile, tile)) {
      ++tile;
    }
    return tile;
  }

 private:
  static constexpr int64_t kLength = 1 << 20;
  static constexpr int64_t kTile = 128;
  static constexpr int64_t kFarthest = 512;  // tiles: longer windows are like none

  bool sees(int64_t key_tile, int64_t first_query_tile, int64_t last_query_tile) const {
    const score::Box box{.b = {},
                         .h = {},
                         .q = {first_query_tile * kTile, last_query_tile * kTile + kTile - 1},
                         .kv = {key_tile * kTile, key_tile * kTile + kTile - 1}};
    if (mask_ && score::truth(mask_->evaluate(box, scratch_)) == score::Truth::kFalse) {
      return false;
    }
    const score::Interval scores = score_ ? score_->evaluate(box, scratch_) : score::Interval::everything(Type::kF32);
    return scores.may_be_nan || scores.real_hi > -std::numeric_limits<double>::infinity();
  }

  std::optional<score::IntervalProgram> mask_;
  std::optional<score::IntervalProgram> score_;
  mutable std::vector<score::Interval> scratch_;
};

// Is a tile of queries later for most tiles of keys than for the one before, and known for all of them?
bool rises(const std::function<std::optional<int64_t>(int64_t key_tile)>& query_tile) {
  constexpr int64_t kFirst = 1000;
  constexpr int64_t kPairs = 8;
  int64_t later = 0;
  std::optional<int64_t> last = query_tile(kFirst);
  for (int64_t key_tile = kFirst + 1; last && key_tile <= kFirst + kPairs; ++key_tile) {
    const std::optional<int64_t> previous = std::exchange(last, query_tile(key_tile));
    later += last > previous ? 1 : 0;
  }
  return last && later > kPairs / 2;
}

}  // namespace

std::vector<ValueId> conditions(const Program& mask_mod) {
  std::vector<ValueId> all;
  std::vector<ValueId> left = {mask_mod.result};
  while (!left.empty()) {
    const ValueId id = left.back();
    const Node& node = mask_mod.nodes[id];
    left.pop_back();
    if (node.op == Op::k_and && node.type == Type::kI1) {
      left.insert(left.end(), node.operands.begin(), node.operands.end());
    } else {
      all.push_back(id);
    }
  }
  return all;
}

std::vector<ValueId> loading_conditions(const Program& mask_mod) {
  std::vector<bool> reads;
  for (const Node& node : mask_mod.nodes) {
    reads.push_back(reads_capture(node.op) ||
                    std::ranges::any_of(node.operands, [&](ValueId id) { return reads[id]; }));
  }
  std::vector<ValueId> loading = conditions(mask_mod);
  const size_t all = loading.size();
  std::erase_if(loading, [&](ValueId id) { return !reads[id]; });
  return loading.size() < all ? loading : std::vector<ValueId>();
}

Program without_loading_conditions(const Program& mask_mod) {
  Program rest = mask_mod;
  for (const ValueId id : loading_conditions(mask_mod)) {
    rest.nodes[id] = {Op::k_constant, Type::kI1, {}, 1};
  }
  return score::simplify(rest);
}

std::optional<std::vector<QueryBound>> query_bounds(const Program& mask_mod) {
  const std::vector<std::optional<Linear>> linear = linear_values(mask_mod);
  std::vector<QueryBound> bounds;
  for (const ValueId id : conditions(mask_mod)) {
    const Node& node = mask_mod.nodes[id];
    const bool equal = node.op == Op::k_eq;
    const bool below = equal || node.op == Op::k_le || node.op == Op::k_lt;
    const bool above = equal || node.op == Op::k_ge || node.op == Op::k_gt;
    if (!below && !above) {
      return std::nullopt;
    }
    const std::optional<Linear>& x = linear[node.operands[0]];
    const std::optional<Linear>& y = linear[node.operands[1]];
    const std::optional<Linear> difference = x && y ? x->plus(*y, -1) : std::nullopt;
    if (!difference) {
      return std::nullopt;
    }
    if (below) {
      bounds.push_back(at_most(*difference, node.op == Op::k_lt ? -1 : 0));
    }
    if (above) {
      bounds.push_back(at_least(*difference, node.op == Op::k_gt ? 1 : 0));
    }
  }
  return bounds;
}

bool is_sliding(const Problem& problem) {
  const VisitProbe probe(problem);
  return rises([&](int64_t key_tile) { return probe.last_seen(key_tile); });
}

bool begins_later(const Problem& problem) {
  const VisitProbe probe(problem);
  return rises([&](int64_t key_tile) { return probe.first_seen(key_tile); });
}

}  // namespace flashlift::cuda
