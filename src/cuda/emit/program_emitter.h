// Emits score programs as CUDA C++.
#pragma once

#include <string>
#include <vector>

#include "flashlift/problem.h"

namespace flashlift::cuda {

// Text of the header program.cuh for a problem whose programs are verified and simplified. Macros that say whether
// something holds are 0 or 1. The functions' parameters:
//   raw                <q, k>, before the scale
//   kv_first, key      the key's number is their sum; `key` is a constant where loops are unrolled
//   row, column        what the program searches for the query alone, and for the key alone
//   params             the kernel's ForwardParams
//
// For score_mod (raw * params.scale if the problem has none):
//   FL_SCORE_FACTOR    the positive factor that is left to the softmax
//   score_mod(raw, row, column, b, h, q, kv_first, key, params)
//                      the score divided by FL_SCORE_FACTOR
//   score_row(b, h, q, params), score_column(b, kv, params)
//                      row and column, of types ScoreRow and ScoreColumn
//   FL_SCORE_COLUMNS   whether columns have contents; agree(x, y) is true if those of two keys, and thus of all keys
//                      between them, are equal
//   FL_SCORE_STRAIGHT_LOADS
//                      whether indices of loads advance by a constant per key. If so, there is also
//   score_mod_inside(raw, row, column, b, h, q_first, row_offset, kv_first, key, params)
//                      for query q_first + row_offset, and keys for which score_loads_inside() is true
//   score_loads_inside(b, h, q, kv_first, last_key, params)
//                      whether no such index is clamped for the keys kv_first to kv_first + last_key
//   FL_SCORE_ZEROS     whether all loads that depend on the key are of masks that are added to the score. If so,
//                      score_mod_of_zeros() has score_mod's parameters, and reads no mask: for tiles where all are 0
//   FL_SCORE_LOADS     whether an index of a load depends on the key
//   FL_SCORE_MASKS     whether the score_mod may give -inf in a whole tile. If so, there is
//   score_tile(b, h_first, h_last, q_first, q_last, kv_first, kv_last, params)
//                      what it gives in a tile (ScoreTile); all bounds are inclusive
//   ScoreMod           Row, Column, column(), loads_inside() and both forms of value(): the above by names that are the
//                      same for all programs
//
// For a mask_mod the same with mask_, FL_MASK_ and Mask, without raw and score_tile(): mask_mod() is true for a kept
// key. There is also
//   MaskTile           for tiles in which threads share rows and columns. OfQuery and OfKey hold the elements that
//                      mask_mod reads for a query or for a key alone, from_lane() copies those of another lane, and
//                      value() is mask_mod for them. kRange: whether a key is kept exactly for queries_of(kv)
//   mask_interval(b, h_first, h_last, q_first, q_last, kv_first, kv_last, params)
//                      what mask_mod may give in a tile: kMayBeFalse | kMayBeTrue, and kLoadsHold if mask_mod equals
//                      plain_mask_mod there
//   FL_HAS_PLAIN_MASK  whether mask_mod is a conjunction of conditions that read captured tensors and of others. If so,
//                      plain_mask_mod, with everything that mask_mod has (plain_mask_, FL_PLAIN_MASK_, PlainMask), is
//                      the conjunction of the others
std::string emit_programs(const Problem& problem);

// May tiles of scores be skipped? FL_FINDS_VISITS in kernels.
bool finds_visits(const Problem& problem);
// May other tiles be skipped in one head than in another?
bool visits_differ_by_head(const Problem& problem);

// Text of the header bounds.cuh: FL_BOUNDS_COUNT and, for the captured tensors of bounded_captures(), BoundsArguments,
// the function find_bounds() for all warps of a grid, and a kernel of it, flashlift_bounds.
std::string emit_bounds(const Problem& problem);

// Text of the header gradient.cuh for the backward kernels:
//   score_gradient(raw, row, column, b, h, q, kv_first, key, params, derivative): the score of key kv_first + key from
//   its unscaled product, and what it changes by as the scaled product does; row and column are as above, of
//   gradient_row and gradient_column;
//   FL_KEY_GRADIENTS, FL_PLANE_GRADIENTS, FL_DIAGONAL_GRADIENTS, FL_QUERY_GRADIENTS: are gradients of captured tensors
//   wanted of loads of these kinds (capture_loads.h); the last: of other loads than keys and planes. Then
//     add_captured_key(ds, raw, row, column, b, h, q, kv_first, key, params, sums, r) adds the gradient of a score to
//     the sums of its key, and add_captured_keys(sums, r, inside, b, h, q, kv, params, gradients) adds these, for any
//     q; add_captured(ds, raw, row, column, b, h, q, kv_first, key, params, gradients, sums, tables, r) adds those of a
//     score whose own is ds, and returns the share of the diagonal's; add_captured_elements(sums, tables, ...) adds
//     what threads have summed of elements last, and add_captured_tables(tables, thread, threads, ...) the block's
//     tables of them (BlockTables, which the kernel's argument ElementTables describes); add_captured_rows(sums, r, b,
//     h, q, inside, params, gradients) adds the sums of a row that has one element for all its keys; add_diagonal(sum,
//     b, h, q, kv, params, gradients) adds the sum of the diagonal with this position; plane_gradient(load, ds, raw,
//     row, ..., params) returns a score's share of a plane's element, and store_plane(load, value, b, h, q, kv, params,
//     gradients) stores the element's sum;
//   FL_MASK_LOADS: does mask_mod load anything at a position that moves with the keys;
//   FL_GRADIENT_SEARCHES, FL_MASK_SEARCHES: do the derivative and mask_mod search;
//   FL_HAS_DERIVATIVE: is the derivative more than 1; FL_DERIVATIVE_SELECTS: score::Derivative::selects.
std::string emit_gradient(const Problem& problem, const std::vector<bool>& wants_gradient);

// A captured tensor. The bounds of its blocks decide masks for whole tiles.
struct BoundedCapture {
  size_t index = 0;  // in problem.captures
  int rows = 1;      // of a block: more than one if a tile reads several rows of the tensor
};
// The tensors that the mask_mod, or a score_mod that masks, reads at a position that changes along their last
// dimension. Floats in a score_mod count only if there is one for each key and all heads share it, as in a mask.
std::vector<BoundedCapture> bounded_captures(const Problem& problem);

}  // namespace flashlift::cuda
