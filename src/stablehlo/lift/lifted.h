// The result of the lift, as the rewrite needs it: values, shapes and letters.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "flashlift/problem.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Value.h"

namespace flashlift::stablehlo {

// An operand of the call: source, then reshaped, then repeated, then transposed, each if not empty. `dims` has one
// letter per dimension of the result; docs/custom_call.md defines the letters.
struct OperandView {
  mlir::Value source;
  std::vector<int64_t> reshape;
  std::vector<int64_t> permutation;  // result dimension i is dimension permutation[i]
  std::string dims;
  std::vector<int64_t> repeated = {};  // sizes of new first dimensions, along which the elements are the same
  std::optional<float> constant;  // instead of a source: this f32 everywhere, in the shape of `reshape` (sinks only)
};

// A result of the call. It has call_shape with `dims`. It is then reshaped to `digits` and transposed (each if not
// empty), summed over the first dimensions, and reshaped to the shape of `replaced`, whose uses it replaces.
struct ResultView {
  mlir::Value replaced;
  std::vector<int64_t> call_shape;
  std::string dims;
  std::vector<int64_t> permutation = {};
  std::vector<int64_t> digits = {};
  size_t summed = 0;
};

// The gradient of a captured tensor of the backward call, which has no `dims`. A module may compute it several times.
struct CaptureGradient {
  std::string capture;  // its name
  ResultView result;
};

// The backward pass of a found attention, if the module has it: its operands besides those of the forward call, and the
// gradients that it computes.
struct LiftedGradient {
  OperandView d_out;
  std::optional<OperandView> d_lse;  // zeros if not set
  std::optional<ResultView> d_q;
  std::optional<ResultView> d_k;
  std::optional<ResultView> d_v;
  std::vector<CaptureGradient> d_captures;
  std::vector<ResultView> d_sinks;  // [q_heads, sinks], as often as the module computes it
  // The problem of the backward call: the forward call's, or one whose score_mod reads tensors that the forward call's
  // score_mod computes.
  Problem problem;
  std::vector<mlir::Value> captures;
};

struct LiftedAttention {
  mlir::Operation* first_product = nullptr;
  mlir::Operation* second_product = nullptr;
  unsigned side_of_probabilities = 0;  // the number of the second product's operand that holds them
  Problem problem;
  OperandView q;
  OperandView k;
  OperandView v;
  std::vector<mlir::Value> captures;  // as Problem::captures
  std::optional<OperandView>
      sinks;  // once reshaped and transposed, [q_heads, sinks] elements in that order, a float type
  std::optional<OperandView> keep_mask;  // once reshaped and transposed, elements in the order of keep_shape
  std::vector<int64_t> keep_shape;       // [batch, q_heads, q_len, kv_len], each size may be 1 instead
  ResultView out;                        // `replaced` is null if the module has the gradient alone
  std::optional<ResultView> lse;
  bool nan_where_lse_is_minus_infinity = false;  // after the call, the output of a row without keys becomes NaN
  bool zero_where_all_is_dropped = false;        // and that of a row of which the keep mask keeps nothing becomes 0
  std::optional<LiftedGradient> gradient;
  std::string summary;  // a readable text of what was recognised
};

// All values that the calls replace.
std::vector<const ResultView*> results_of(const LiftedAttention& found);

}  // namespace flashlift::stablehlo
