#include "problem/oracle_rows.h"

#include <limits>

#include "problem/dropout.h"
#include "problem/elements.h"

namespace flashlift::problem {

void OracleRows::compute(int64_t b, int64_t h, int64_t i) {
  scores_.resize(kv_len());
  products_.assign(kv_len(), 0.0);
  for (int64_t j = 0; j < kv_len(); ++j) {
    const score::Coordinates at = coordinates(b, h, i, j);
    if (!mask_mod(at)) {
      scores_[j] = -std::numeric_limits<double>::infinity();
      continue;
    }
    const int64_t q_offset = row_offset(arguments_.q, b, h, i);
    const int64_t k_offset = key_offset(b, kv_head(h), j);
    double dot = 0;
    for (int64_t d = 0; d < problem_.head_dim; ++d) {
      dot += read_float(arguments_.q, q_offset + d * arguments_.q.strides[3]) *
             read_float(arguments_.k, k_offset + d * arguments_.k.strides[3]);
    }
    products_[j] = problem_.scale * dot;
    scores_[j] = score_mod(products_[j], at);
  }
}

double OracleRows::dropout_factor(int64_t b, int64_t h, int64_t i, int64_t j) const {
  return problem::dropout_factor(problem_, arguments_, b, h, i, j);
}

}  // namespace flashlift::problem
