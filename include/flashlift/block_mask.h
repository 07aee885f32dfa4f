// Block masks given as lists, as in FlexAttention's BlockMask.
//
// Such a block mask becomes part of mask_mod: a captured tensor holds for each block whether it is skipped, partial or
// full. It therefore composes with everything else, and every implementation supports it.
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

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

// The tensors of a BlockMask, all i32. B and H may be 1: then all batches or heads have the same blocks.
struct BlockLists {
  int64_t q_block = 128;
  int64_t kv_block = 128;
  TensorView kv_num_blocks;                           // [B, H, QB]
  TensorView kv_indices;                              // [B, H, QB, KB]; the first kv_num_blocks of each row are valid
  std::optional<TensorView> full_kv_num_blocks = {};  // the same for full blocks, in which mask_mod need not run
  std::optional<TensorView> full_kv_indices = {};
};

// One byte per block: 0 skipped, 1 partial, 2 full.
struct BlockKinds {
  int64_t q_block = 128;
  int64_t kv_block = 128;
  std::vector<int64_t> shape;  // [B, H, QB, KB]
  std::vector<uint8_t> kinds;  // dense

  TensorView view() { return dense_view(kinds.data(), DType::kU8, shape); }
};

// Errors: tensors of other shapes or dtypes, counts or indices out of range.
Result<BlockKinds> block_kinds(const BlockLists& lists);

// Computes the kinds of blocks from the problem's programs by interval analysis, without anything of size N x N. A
// block is partial if it cannot be proved to be skipped or full. Without `by_batch` (`by_head`) the result has one
// batch (head), and a block is skipped or full if it is so in all batches (heads) of the problem. Errors: the problem
// is malformed, or `captures` do not match it; blocks without queries or keys; no memory for the kinds.
Result<BlockKinds> block_kinds(const Problem& problem, const std::vector<TensorView>& captures, int64_t q_block,
                               int64_t kv_block, bool by_batch, bool by_head);

// Changes mask_mod so that it keeps every score in a full block, and in a partial block the scores that it kept before.
// The captured tensor `name` comes last in Problem::captures; tensors that no program reads any more are removed.
// Errors: the problem is malformed, has another number of blocks, or already reads a captured tensor of that name.
Status restrict_to_blocks(const BlockKinds& kinds, Problem& problem, const std::string& name = "block_kinds");

}  // namespace flashlift

#pragma GCC visibility pop
