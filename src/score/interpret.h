// Runs a score program one score at a time. Slow and obvious: in f64 the oracle's half of the truth, in f32 the eager
// maths that errors are measured against.
#pragma once

#include <span>

#include "flashlift/program.h"
#include "flashlift/tensor.h"
#include "score/scalar.h"

namespace flashlift::score {

struct Coordinates {
  int32_t b = 0;
  int32_t h = 0;
  int32_t q = 0;
  int32_t kv = 0;
  int32_t q_len = 0;
  int32_t kv_len = 0;
};

// Holds its scratch, so use one interpreter per thread for many calls.
template <typename Real>
class BasicInterpreter {
 public:
  // `captures` are in the order of program.captures, and outlive the interpreter, as does the program.
  BasicInterpreter(const Program& program, std::span<const TensorView> captures);

  Real score_mod(Real score, const Coordinates& at);
  bool mask_mod(const Coordinates& at);

  // Any node's value in the last run: what programs of several results are read by.
  double real(ValueId id) const { return reals_[id]; }
  int64_t integer(ValueId id) const { return integers_[id]; }

 private:
  void evaluate(Real score, const Coordinates& at);
  Scalar<Real> evaluate_node(const Node& node, Real score, const Coordinates& at) const;

  const Program& program_;
  std::span<const TensorView> captures_;
  std::vector<int64_t> integers_;
  std::vector<Real> reals_;
};
extern template class BasicInterpreter<float>;
extern template class BasicInterpreter<double>;
using Interpreter = BasicInterpreter<double>;

// An element of a tensor: integers and bool in `integer`, floats in `real`. Indices are clamped.
struct Element {
  int64_t integer = 0;
  double real = 0;
};
Element load_element(const TensorView& tensor, std::span<const int64_t> indices);
// Op::k_search of a 1-D tensor of integers. An empty one counts as one 0, which is what loads from it give.
int64_t search_element(const TensorView& tensor, int64_t x);

}  // namespace flashlift::score
