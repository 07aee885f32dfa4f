#include "cuda/emit/capture_loads.h"

#include <algorithm>
#include <optional>

#include "cuda/emit/motion.h"
#include "problem/differentiate.h"

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
    found.cancels =
        (found.sum == CaptureSum::kRow || found.sum == CaptureSum::kElement) && !motion.score[derived.weight];
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
