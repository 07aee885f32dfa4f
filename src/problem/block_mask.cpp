#include "flashlift/block_mask.h"

#include <algorithm>
#include <limits>
#include <span>

#include "flashlift/builder.h"
#include "problem/block_mask.h"
#include "problem/verify_tensor.h"
#include "score/compose.h"
#include "score/simplify.h"
#include "support/error.h"
#include "support/rounding.h"

namespace flashlift {
namespace {

constexpr uint8_t kPartial = 1;
constexpr uint8_t kFull = 2;
constexpr int64_t kMaxBlock = std::numeric_limits<int32_t>::max();  // longer than any sequence

Status verify_list(const char* name, const TensorView& view, std::span<const int64_t> shape) {
  return problem::verify_tensor({.name = name, .view = view, .dtype = DType::kI32, .shape = shape});
}

int32_t element(const TensorView& view, std::initializer_list<int64_t> indices) {
  int64_t offset = 0;
  size_t i = 0;
  for (const int64_t index : indices) {
    offset += index * view.strides[i++];
  }
  return static_cast<const int32_t*>(view.data)[offset];
}

// Marks the blocks in one pair of lists (counts and indices).
Status mark(const char* name, const TensorView& counts, const TensorView& indices, uint8_t kind, BlockKinds& result) {
  const std::vector<int64_t>& shape = result.shape;
  FLASHLIFT_RETURN_IF_ERROR(verify_list(name, counts, std::span(shape).first(3)));
  FLASHLIFT_RETURN_IF_ERROR(verify_list(name, indices, shape));
  uint8_t* row = result.kinds.data();
  for (int64_t b = 0; b < shape[0]; ++b) {
    for (int64_t h = 0; h < shape[1]; ++h) {
      for (int64_t i = 0; i < shape[2]; ++i, row += shape[3]) {
        const int64_t count = element(counts, {b, h, i});
        if (count < 0 || count > shape[3]) {
          return invalid_argument("{}: row {} of [{}, {}] lists {} blocks, expected 0 to {}", name, i, b, h, count,
                                  shape[3]);
        }
        for (int64_t n = 0; n < count; ++n) {
          const int64_t block = element(indices, {b, h, i, n});
          if (block < 0 || block >= shape[3]) {
            return invalid_argument("{}: row {} of [{}, {}] lists block {}, expected 0 to {}", name, i, b, h, block,
                                    shape[3] - 1);
          }
          row[block] = kind;
        }
      }
    }
  }
  return {};
}

}  // namespace

Status problem::verify_blocks(int64_t q_block, int64_t kv_block) {
  if (q_block < 1 || kv_block < 1) {
    return invalid_argument("blocks have at least one query and one key, got {} and {}", q_block, kv_block);
  }
  return {};
}

Result<BlockKinds> block_kinds(const BlockLists& lists) {
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_blocks(lists.q_block, lists.kv_block));
  if (lists.kv_indices.rank != 4) {
    return invalid_argument("kv_indices: expected i32[B,H,QB,KB], got {}", describe(lists.kv_indices));
  }
  FLASHLIFT_RETURN_IF_ERROR(verify_list("kv_indices", lists.kv_indices, lists.kv_indices.shape()));
  if (lists.full_kv_num_blocks.has_value() != lists.full_kv_indices.has_value()) {
    return invalid_argument("full_kv_num_blocks and full_kv_indices come together, or not at all");
  }
  BlockKinds result{.q_block = lists.q_block, .kv_block = lists.kv_block, .shape = {}, .kinds = {}};
  result.shape.assign(lists.kv_indices.shape().begin(), lists.kv_indices.shape().end());
  result.kinds.assign(lists.kv_indices.element_count(), 0);
  FLASHLIFT_RETURN_IF_ERROR(mark("kv_indices", lists.kv_num_blocks, lists.kv_indices, kPartial, result));
  if (lists.full_kv_indices) {
    FLASHLIFT_RETURN_IF_ERROR(
        mark("full_kv_indices", *lists.full_kv_num_blocks, *lists.full_kv_indices, kFull, result));
  }
  return result;
}

Status restrict_to_blocks(const BlockKinds& kinds, Problem& problem, const std::string& name) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(problem::verify_blocks(kinds.q_block, kinds.kv_block));
  const std::vector<int64_t>& shape = kinds.shape;
  const bool lengths_fit = shape.size() == 4 && shape[2] == divide_up(problem.q_len, kinds.q_block) &&
                           shape[3] == divide_up(problem.kv_len, kinds.kv_block);
  const bool heads_fit = shape.size() == 4 && (shape[0] == 1 || shape[0] == problem.batch) &&
                         (shape[1] == 1 || shape[1] == problem.q_heads);
  if (!lengths_fit || !heads_fit) {
    return invalid_argument("a block mask of this problem has shape [1 or {},1 or {},{},{}], got [{}]", problem.batch,
                            problem.q_heads, divide_up(problem.q_len, kinds.q_block),
                            divide_up(problem.kv_len, kinds.kv_block), fmt::join(shape, ","));
  }
  if (dense_view(nullptr, DType::kU8, shape).element_count() != static_cast<int64_t>(kinds.kinds.size())) {
    return invalid_argument("block kinds of shape [{}] have {} bytes: expected one a block", fmt::join(shape, ","),
                            kinds.kinds.size());
  }
  if (std::any_of(problem.captures.begin(), problem.captures.end(),
                  [&](const Capture& capture) { return capture.name == name; })) {
    return invalid_argument("the problem reads a captured tensor `{}` already; give the blocks another name", name);
  }
  const Captured captured(name, DType::kU8, shape);
  const int q_block = static_cast<int>(std::min<int64_t>(kinds.q_block, kMaxBlock));
  const int kv_block = static_cast<int>(std::min<int64_t>(kinds.kv_block, kMaxBlock));
  // Dimensions of size 1 need no special case, since indices are clamped.
  const auto is_kind = [&](uint8_t kind) {
    return trace_mask_mod([&](Expr b, Expr h, Expr q, Expr kv) {
      return captured(b, h, floor_div(q, q_block), floor_div(kv, kv_block)) == int{kind};
    });
  };
  FLASHLIFT_ASSIGN_OR_RETURN(Program mask_mod, is_kind(kPartial));
  FLASHLIFT_ASSIGN_OR_RETURN(const Program full, is_kind(kFull));
  if (problem.mask_mod) {
    FLASHLIFT_ASSIGN_OR_RETURN(mask_mod, score::conjunction(*problem.mask_mod, mask_mod));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(mask_mod, score::disjunction(mask_mod, full));
  mask_mod = score::simplify(mask_mod);
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, mask_mod));
  problem.mask_mod = std::move(mask_mod);
  return {};
}

}  // namespace flashlift
