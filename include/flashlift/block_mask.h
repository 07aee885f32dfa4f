// Block masks that are given as lists, in FlexAttention's form.
//
// A given block mask becomes part of mask_mod: a captured tensor says of each block whether it is skipped, partial or
// full, so that it composes with everything else and every implementation takes it.
//
//   Result<BlockKinds> kinds = block_kinds(lists);
//   Status status = restrict_to_blocks(*kinds, problem);   // its tensor comes last in problem.captures
//   ... call with kinds->view() as that captured tensor
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tensor.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

// BlockMask's tensors, all i32. B and H may be 1: then all batches or heads have the same blocks.
struct BlockLists {
  int64_t q_block = 128;
  int64_t kv_block = 128;
  TensorView kv_num_blocks;                      // [B, H, QB]
  TensorView kv_indices;                         // [B, H, QB, KB], of which the first kv_num_blocks count
  std::optional<TensorView> full_kv_num_blocks;  // the same for blocks where mask_mod need not run
  std::optional<TensorView> full_kv_indices;
};

// One byte a block: 0 skipped, 1 partial, 2 full.
struct BlockKinds {
  int64_t q_block = 128;
  int64_t kv_block = 128;
  std::vector<int64_t> shape;  // [B, H, QB, KB]
  std::vector<uint8_t> kinds;  // dense

  TensorView view() { return dense_view(kinds.data(), DType::kU8, shape); }
};

// Errors: tensors of other shapes or dtypes, counts or indices out of range.
Result<BlockKinds> block_kinds(const BlockLists& lists);

// The kinds of blocks that the problem's programs have, found by intervals: nothing of size N x N is built, and a block
// is partial where it could not be proved to be skipped or full. Without `by_batch` (`by_head`) there is one batch
// (head) of blocks, which are skipped or full in all of the problem's. Errors: the problem is malformed, or `captures`
// are not what it reads; blocks without queries or keys.
Result<BlockKinds> block_kinds(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_block,
                               int64_t kv_block, bool by_batch, bool by_head);

// Makes mask_mod keep what lies in a full block, and what lies in a partial block and was kept before. The captured
// tensor `name` comes last in Problem::captures, which no longer holds tensors that no program reads.
// Errors: the problem is malformed, or has blocks of another number, or reads a captured tensor of that name.
Status restrict_to_blocks(const BlockKinds& kinds, Problem& problem, const std::string& name = "block_kinds");

}  // namespace flashlift

#pragma GCC visibility pop
