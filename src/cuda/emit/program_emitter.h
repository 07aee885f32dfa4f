// Emits score programs as CUDA C++.
#pragma once

#include <string>
#include <vector>

#include "flashlift/problem.h"

namespace flashlift::cuda {

// Text of the header program.cuh for a problem whose programs are verified and simplified:
//   score_mod(raw, row, column, b, h, q, kv_first, key, params): the score of key kv_first + key from its unscaled
//   product, divided by FL_SCORE_FACTOR; and mask_mod(row, column, b, h, q, kv_first, key, params), where the problem
//   has one. For each of them (mask_..., FL_MASK_... likewise):
//     row and column: what score_row(b, h, q, params) and score_column(b, kv, params) give, searches;
//     FL_SCORE_COLUMNS: is there anything in a column; agree(x, y): is it the same from key to key;
//     FL_SCORE_STRAIGHT_LOADS: does it load at positions that grow with the keys. Then score_mod_inside(raw, row,
//     column, b, h, q_first, row_offset, kv_first, key, params) is score_mod where score_loads_inside(b, h, q,
//     kv_first, last_key, params) for the row; and for the row q_first, if that is another one;
//     FL_SCORE_ZEROS: does score_mod read nothing that changes with the key but masks, which it adds. Then
//     score_mod_of_zeros(...) is score_mod where they are 0, and reads none;
//     ScoreMod: all of this by names that are the same for both programs: Row, Column, value(), loads_inside() and so
//     on,
//   MaskTile: for tiles in which a thread shares its rows and columns with others: what mask_mod reads for a query or a
//   key alone (OfQuery, OfKey; from_lane() gives another lane's), and value() of these; kRange: is all that it asks of
//   a query that it be one of queries_of(kv),
//   mask_interval(b, h_first, h_last, q_first, q_last, kv_first, kv_last, params): what mask_mod can give in a tile, as
//   kMayBeFalse | kMayBeTrue; and kLoadsHold where plain_mask_mod is mask_mod,
//   FL_HAS_PLAIN_MASK: is mask_mod a conjunction of conditions that read captured tensors and others that do not. Then
//   plain_mask_mod, with all that mask_mod has (PlainMaskTile, FL_PLAIN_MASK_..., plain_mask_interval likewise), is the
//   others alone,
//   FL_SCORE_LOADS: does score_mod load anything at a position that moves with the keys,
//   score_tile(the same), where FL_SCORE_MASKS: does score_mod surely give -inf in all of a tile, or are all masks that
//   it adds surely 0 there.
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
