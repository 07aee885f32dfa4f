// A problem with its tensors, which reference implementations read element by element.
#pragma once

#include <optional>
#include <span>
#include <vector>

#include "flashlift/problem.h"
#include "score/interpret.h"

namespace flashlift::problem {

// The views of those captured tensors of the problem that the program reads, in the program's order.
std::vector<TensorView> views_of(const Program& program, const Problem& problem, std::span<const TensorView> captures);

// Interprets the problem's programs in Real. Problem and arguments must outlive it.
template <typename Real>
class BoundProblem {
 public:
  BoundProblem(const Problem& problem, const AttentionArguments& arguments);
  BoundProblem(const BoundProblem&) = delete;  // the interpreters keep references to the views
  BoundProblem& operator=(const BoundProblem&) = delete;

  int64_t kv_len() const { return kv_len_; }
  int64_t kv_head(int64_t h) const { return h * problem_.kv_heads / problem_.q_heads; }
  score::Coordinates coordinates(int64_t b, int64_t h, int64_t i, int64_t j) const;
  // The offset of key j of the key-value head g in k, and likewise in v.
  int64_t key_offset(int64_t b, int64_t g, int64_t j) const { return offset(arguments_.k, b, g, j); }
  int64_t value_offset(int64_t b, int64_t g, int64_t j) const { return offset(arguments_.v, b, g, j); }
  Real sink(int64_t h, int64_t r) const;

 protected:
  Real score_mod(Real score, const score::Coordinates& at);
  bool mask_mod(const score::Coordinates& at);

  const Problem& problem_;
  const AttentionArguments& arguments_;

 private:
  int64_t offset(const TensorView& view, int64_t b, int64_t g, int64_t j) const;

  int64_t kv_len_;
  std::vector<TensorView> score_views_;
  std::vector<TensorView> mask_views_;
  std::optional<score::BasicInterpreter<Real>> score_mod_;
  std::optional<score::BasicInterpreter<Real>> mask_mod_;
};

extern template class BoundProblem<float>;
extern template class BoundProblem<double>;

}  // namespace flashlift::problem
