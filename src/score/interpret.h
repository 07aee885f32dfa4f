// Runs a score program one score at a time. It is slow and simple: in f64 a part of the oracle, in f32 a part of the
// eager maths against which errors are measured.
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

// Contains its working memory, so that each thread should reuse one interpreter for many calls.
template <typename Real>
class BasicInterpreter {
 public:
  // `captures` are in the order of program.captures. They and the program must outlive the interpreter.
  BasicInterpreter(const Program& program, std::span<const TensorView> captures);

  Real score_mod(Real score, const Coordinates& at);
  bool mask_mod(const Coordinates& at);

  // The value of any node in the last run, for programs with several results.
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
// Op::k_search of a 1-D tensor of integers. An empty tensor counts as a single 0, which loads from it return, too.
int64_t search_element(const TensorView& tensor, int64_t x);

}  // namespace flashlift::score
