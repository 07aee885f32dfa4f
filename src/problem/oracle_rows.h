// One row of scores in double precision: what the oracle's two directions share.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "score/interpret.h"

namespace flashlift::problem {

// The views of a program's captured tensors, in its own order.
std::vector<TensorView> views_of(const Program& program, const Problem& problem, const AttentionArguments& arguments);

class OracleRows {
 public:
  OracleRows(const Problem& problem, const AttentionArguments& arguments);

  // Computes the scores of one query with all keys.
  void compute(int64_t b, int64_t h, int64_t i);
  // After score_mod, -inf where mask_mod masks.
  const std::vector<double>& scores() const { return scores_; }
  // scale * <q, k>; of masked keys too only if no mask_mod says so first.
  const std::vector<double>& products() const { return products_; }

  double sink(int64_t h, int64_t r) const;
  double dropout_factor(int64_t b, int64_t h, int64_t i, int64_t j) const;
  int64_t kv_len() const { return kv_len_; }
  // Where key j of the key-value head g lies in k, and likewise in v.
  int64_t key_offset(int64_t b, int64_t g, int64_t j) const {
    return key_offset(problem_, arguments_, arguments_.k, b, g, j);
  }
  int64_t value_offset(int64_t b, int64_t g, int64_t j) const {
    return key_offset(problem_, arguments_, arguments_.v, b, g, j);
  }
  static int64_t key_offset(const Problem& problem, const AttentionArguments& arguments, const TensorView& view,
                            int64_t b, int64_t g, int64_t j);
  int64_t kv_head(int64_t h) const { return h * problem_.kv_heads / problem_.q_heads; }
  score::Coordinates coordinates(int64_t b, int64_t h, int64_t i, int64_t j) const;

 private:
  const Problem& problem_;
  const AttentionArguments& arguments_;
  int64_t kv_len_;
  std::vector<TensorView> score_views_;
  std::vector<TensorView> mask_views_;
  std::optional<score::Interpreter> score_mod_;
  std::optional<score::Interpreter> mask_mod_;
  std::vector<double> scores_;
  std::vector<double> products_;
};

}  // namespace flashlift::problem
