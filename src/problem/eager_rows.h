// One row of scores and probabilities as unfused maths has them: what the eager maths' two directions share.
#pragma once

#include <optional>
#include <vector>

#include "flashlift/problem.h"
#include "score/interpret.h"

namespace flashlift::problem {

float round_to(DType dtype, float value);

class EagerRows {
 public:
  EagerRows(const Problem& problem, const AttentionArguments& arguments);

  // Computes the row of one query.
  void compute(int64_t b, int64_t h, int64_t i);
  // No key and no sink left: the probabilities are what empty_rows makes of it.
  bool empty() const { return empty_; }
  // scale * <q, k> of every key, the dot product rounded to the problem's dtype.
  const std::vector<float>& products() const { return products_; }
  // After score_mod, -inf where mask_mod masks.
  const std::vector<float>& scores() const { return scores_; }
  // The softmax, in f32. Without normalisation, the exponentials.
  const std::vector<float>& probabilities() const { return probabilities_; }
  float sink_probability(int64_t r) const { return sink_probabilities_[static_cast<size_t>(r)]; }

  score::Coordinates coordinates(int64_t b, int64_t h, int64_t i, int64_t j) const;
  int64_t kv_len() const { return kv_len_; }
  int64_t kv_head(int64_t h) const { return h * problem_.kv_heads / problem_.q_heads; }

 private:
  void fill_scores(int64_t b, int64_t h, int64_t i);
  void softmax(int64_t h);
  float sink(int64_t h, int64_t r) const;

  const Problem& problem_;
  const AttentionArguments& arguments_;
  int64_t kv_len_;
  std::vector<TensorView> score_views_;
  std::vector<TensorView> mask_views_;
  std::optional<score::BasicInterpreter<float>> score_mod_;
  std::optional<score::BasicInterpreter<float>> mask_mod_;
  bool empty_ = false;
  std::vector<float> products_;
  std::vector<float> scores_;
  std::vector<float> probabilities_;
  std::vector<float> sink_probabilities_;
};

}  // namespace flashlift::problem
