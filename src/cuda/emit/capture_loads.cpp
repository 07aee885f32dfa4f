#include "cuda/emit/capture_loads.h"

#include <algorithm>
#include <array>
#include <limits>
#include <optional>
#include <span>

#include "cuda/emit/motion.h"
#include "problem/differentiate.h"
#include "score/interpret.h"
#include "score/operation.h"
#include "score/simplify.h"

namespace flashlift::cuda {
namespace {

size_t capture_of(const Problem& problem, const Program& program, const Node& load) {
  const Capture& capture = program.captures[static_cast<size_t>(load.payload)];
  return static_cast<size_t>(std::ranges::find(problem.captures, capture) - problem.captures.begin());
}

// Of each value: is it the same for all queries and keys of the same distance?
std::vector<bool> depend_on_distance(const Program& program) {
  const std::vector<std::optional<Linear>> linear = linear_values(program);
  std::vector<bool> distance;
  for (size_t i = 0; i < program.nodes.size(); ++i) {
    const Node& node = program.nodes[i];
    const bool input = node.op == Op::k_q || node.op == Op::k_kv || node.op == Op::k_score;
    const bool of_operands = std::ranges::all_of(node.operands, [&](ValueId id) { return distance[id]; });
    distance.push_back((linear[i] && linear[i]->q + linear[i]->kv == 0) || (!input && of_operands));
  }
  return distance;
}

// The dimensions of a load at [query, key] in any order, with the batch and the head or constants besides.
bool find_plane(const Program& program, const Node& load, CaptureLoad& plane) {
  for (size_t d = 0; d < load.operands.size(); ++d) {
    const Op op = program.nodes[load.operands[d]].op;
    int* const dim = op == Op::k_b    ? &plane.b_dim
                     : op == Op::k_h  ? &plane.h_dim
                     : op == Op::k_q  ? &plane.q_dim
                     : op == Op::k_kv ? &plane.kv_dim
                                      : nullptr;
    if (dim == nullptr ? op != Op::k_constant : *dim >= 0) {
      return false;
    }
    if (dim != nullptr) {
      *dim = static_cast<int>(d);
    }
  }
  return plane.q_dim >= 0 && plane.kv_dim >= 0;
}

// Whether the elements that a block reads may be few enough for a table. Sizes that each call determines may be small.
bool may_have_few_elements(const Capture& capture, uint32_t moves) {
  constexpr int64_t kMost = kMostTableBytes / (kLeastTableWords * static_cast<int64_t>(sizeof(int)));
  int64_t elements = 1;
  for (size_t d = 0; d < capture.shape.size() && elements <= kMost; ++d) {
    elements *= (moves >> d & 1) != 0 ? std::max(capture.shape[d], int64_t{1}) : 1;
  }
  return elements <= kMost;
}

// Is a weight 0 where the score is, as that of t in `t * score`? Then the weights of a row's keys are not alike.
bool scales_with_score(const Program& program, ValueId weight) {
  std::vector<bool> scales;
  for (const Node& node : program.nodes) {  // operands come before the nodes that use them
    const bool multiplies = score::is_any(node.op, {Op::k_mul, Op::k_neg, Op::k_round_bf16, Op::k_round_f16});
    scales.push_back(node.op == Op::k_score ||
                     (multiplies && std::ranges::any_of(node.operands, [&](ValueId id) { return scales[id]; })));
  }
  return scales[weight];
}

// Do all keys of a whole row, other than the first or the last row, have one element of the tensor, or most keys of
// every row? So it is if their indices are clamped. (Under a causal mask, the first row has only one key anyway. Sizes
// that each call determines are taken to be large. A problem of one query and one key stands for any lengths: a short
// and a long one are examined.)
bool sums_whole_rows(const Problem& problem, Program program, const Node& load) {
  const std::vector<int64_t> sizes = program.captures[static_cast<size_t>(load.payload)].shape;
  std::vector<ValueId> indices = load.operands;
  program.nodes.push_back({.op = Op::k_constant, .type = Type::kF32, .operands = {}, .payload = 0});
  program.result = static_cast<ValueId>(program.nodes.size() - 1);
  program = score::simplify(program, indices);
  if (!program.captures.empty()) {
    return true;  // other tensors determine it
  }
  score::Interpreter interpreter(program, {});
  const auto element_of = [&](int64_t q, int64_t kv, int64_t q_len, int64_t kv_len) {
    interpreter.score_mod(0, {.q = static_cast<int32_t>(q),
                              .kv = static_cast<int32_t>(kv),
                              .q_len = static_cast<int32_t>(q_len),
                              .kv_len = static_cast<int32_t>(kv_len)});
    std::vector<int64_t> element;
    for (size_t d = 0; d < indices.size(); ++d) {
      const int64_t last = sizes[d] < 0 ? std::numeric_limits<int64_t>::max() : std::max<int64_t>(sizes[d] - 1, 0);
      element.push_back(std::clamp<int64_t>(interpreter.integer(indices[d]), 0, last));
    }
    return element;
  };
  const auto sums_at = [&](int64_t q_len, int64_t kv_len) {
    const int64_t last_row = std::max<int64_t>(q_len - 1, 0);
    const int64_t last_key = std::max<int64_t>(kv_len - 1, 0);
    const std::array rows = {std::min<int64_t>(1, last_row), last_row / 2, std::max<int64_t>(last_row - 1, 0)};
    const std::array ends = {int64_t{0}, std::min<int64_t>(1, last_key), std::max<int64_t>(last_key - 1, 0), last_key};
    const std::array quarters = {last_key / 4, last_key / 2, last_key - last_key / 4};
    const auto have_one_element = [&](int64_t q, std::span<const int64_t> keys) {
      const std::vector<int64_t> middle = element_of(q, last_key / 2, q_len, kv_len);
      return std::ranges::all_of(keys, [&](int64_t kv) { return element_of(q, kv, q_len, kv_len) == middle; });
    };
    const auto most = [&](int64_t q) { return have_one_element(q, quarters); };
    const auto all = [&](int64_t q) { return most(q) && have_one_element(q, ends); };
    return std::ranges::any_of(rows, all) || std::ranges::all_of(rows, most);
  };
  if (problem.q_len == 1 && problem.kv_len == 1) {
    constexpr int64_t kShort = 64;
    constexpr int64_t kLong = 4096;
    return sums_at(kShort, kShort) || sums_at(kLong, kLong);
  }
  return sums_at(problem.q_len, problem.kv_len);
}

}  // namespace

std::vector<CaptureLoad> capture_loads(const Problem& problem, const score::Derivative& derivative) {
  const Program& program = derivative.body;
  const Motion motion(program);
  const std::vector<bool> distance = depend_on_distance(program);
  const auto is_of_same_capture = [&](const Node& load) {
    return [&](const score::LoadDerivative& other) { return program.nodes[other.load].payload == load.payload; };
  };
  std::vector<CaptureLoad> loads;
  bool has_diagonal = false;
  int tables = 0;
  for (const score::LoadDerivative& derived : derivative.loads) {
    const Node& load = program.nodes[derived.load];
    const auto any = [&](const std::vector<bool>& which) {
      return std::ranges::any_of(load.operands, [&](ValueId id) { return which[id]; });
    };
    CaptureLoad found{.capture = capture_of(problem, program, load)};
    CaptureLoad plane = found;
    if (!any(motion.score)) {
      if (!any(motion.kv)) {
        found.sum = CaptureSum::kRow;
      } else if (!any(motion.q)) {
        found.sum = CaptureSum::kKey;
      } else if (!has_diagonal && std::ranges::all_of(load.operands, [&](ValueId id) { return distance[id]; })) {
        found.sum = CaptureSum::kDiagonal;
        has_diagonal = true;
      } else if (std::ranges::count_if(derivative.loads, is_of_same_capture(load)) == 1 &&
                 find_plane(program, load, plane)) {
        found = plane;
        found.sum = CaptureSum::kPlane;
      }
    }
    if (found.sum == CaptureSum::kElement || found.sum == CaptureSum::kDiagonal) {
      for (size_t d = 0; d < load.operands.size(); ++d) {
        const ValueId index = load.operands[d];
        const bool moves = motion.score[index] || motion.q[index] || motion.kv[index];
        found.moves |= static_cast<uint32_t>(moves) << d;
      }
      const bool has_table = found.sum == CaptureSum::kElement && tables < kMostElementTables &&
                             may_have_few_elements(program.captures[static_cast<size_t>(load.payload)], found.moves);
      found.table = has_table ? tables++ : -1;
    }
    // (An index of an element may be the same for a whole row, too: one that is clamped, for example.)
    const bool sums_rows =
        found.sum == CaptureSum::kRow || found.sum == CaptureSum::kElement || sums_whole_rows(problem, program, load);
    found.cancels = sums_rows && !scales_with_score(program, derived.weight);
    loads.push_back(found);
  }
  return loads;
}

int element_tables(const std::vector<CaptureLoad>& loads) {
  return static_cast<int>(std::ranges::count_if(loads, [](const CaptureLoad& load) { return load.table >= 0; }));
}

std::vector<CaptureLoad> capture_loads(const Problem& problem, const std::vector<bool>& wants_gradient) {
  const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient);
  return derivative ? capture_loads(problem, *derivative) : std::vector<CaptureLoad>();
}

}  // namespace flashlift::cuda
