// How backward_config.cpp chooses kernels: the functions of each family, and what the families share.
#pragma once

#include <cstdint>
#include <functional>

#include "cuda/emit/backward_config.h"

namespace flashlift::cuda {

inline constexpr int kMostColumns = 128;  // of d_k, and of d_v, in the registers of a block
inline constexpr const char* kRoundedOutput =
    "it takes <d_out, out> from an output that is not rounded, and the problem asks for no residual";

// May the lse of a row be NaN although the row only has no keys (`empty_rows=nan`)? Where mask_mod leaves out its keys,
// this does no harm. Where their scores are -inf, only the scores tell the row from one whose scores are NaN.
bool hides_empty_rows(const Problem& problem);

// Whether there must be kernels that take over if some row's gradient does not follow from its lse.
bool needs_fallback(const Problem& problem);

// Of what a kernel keeps in shared memory besides, for tiles of this size.
using MoreSharedBytes = std::function<int64_t(const ForwardConfig& config)>;
// The scores of a block whose diagonals are summed (kernels/sm80/backward_captures.cu).
int64_t diagonal_bytes(const ForwardConfig& config);
// Of each of several tables that share so many bytes of shared memory.
int64_t bytes_of_table(int64_t bytes, int tables);

// The portable kernels (backward_config_sm80.cpp): tiles of a kernel for queries; kernels without a fused one; all.
// Errors: kUnsupported with the reason.
Status choose_query_tiles(const MoreSharedBytes& more, ForwardConfig& config);
Result<Sm80Backward> choose_sm80_apart(const Problem& problem, int architecture);
Result<Sm80Backward> choose_sm80_backward(const Problem& problem, int architecture);

// Hopper's (backward_config_sm90.cpp): tiles, stages and registers of a kernel of which the rest is given; all kernels.
// Errors: kUnsupported with the reason.
Sm90BackwardKernel sm90_kernel(const Problem& problem, Sm90BackwardKernel kernel);
Result<Sm90Backward> choose_sm90_backward(const Problem& problem);

}  // namespace flashlift::cuda
