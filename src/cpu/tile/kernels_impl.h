// The kernels of kernels.h over a Vector type. One source file for each instruction set includes this file. Before
// that, it defines FLASHLIFT_ISA_NAMESPACE and includes the vector type and, if there are any, the pair kernels
// (x86/pairs_impl.h). No code here or in the parts may call an inline function of another header: the linker might then
// keep the copy that was compiled for this instruction set, for all callers.
#pragma once

#include "cpu/tile/direct_impl.h"
#include "cpu/tile/dropout_impl.h"
#include "cpu/tile/gradients_impl.h"
#include "cpu/tile/kernels.h"
#include "cpu/tile/product_impl.h"
#include "cpu/tile/rows_impl.h"
#include "cpu/tile/softmax_impl.h"

namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE {
namespace {

#ifdef FLASHLIFT_PAIR_PRODUCT
constexpr const PairKernels* kPairs = &kPairKernels;
#else
constexpr const PairKernels* kPairs = nullptr;
#endif

}  // namespace

// Must only be called if this machine has the instruction set.
const TileKernels& kernels();
// NOLINTNEXTLINE(misc-definitions-in-headers): each instruction set has its namespace and one file that includes this
const TileKernels& kernels() {
  static constexpr TileKernels kKernels = {.isa = FLASHLIFT_ISA_VALUE,
                                           .lanes = kLanes,
                                           .panel_width = kLanes * Vector::kPanelVectors,
                                           .convert_rows = convert_rows,
                                           .pack_transposed = pack_transposed,
                                           .bring_near = bring_near,
                                           .all_finite = all_finite,
                                           .multiply = multiply,
                                           .multiply_transposed = multiply_transposed,
                                           .dot_rows = dot_rows,
                                           .add_rows = add_rows,
                                           .row_max = row_max,
                                           .softmax = softmax_to<Exponentials>,
                                           .log_sums = log_sums,
                                           .drop_out = drop_out,
                                           .sum_rows = sum_rows,
                                           .score_gradients = score_gradients,
                                           .store_row = store_row,
                                           .pairs = kPairs};
  return kKernels;
}

}  // namespace flashlift::cpu::FLASHLIFT_ISA_NAMESPACE
