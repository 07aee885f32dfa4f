#include "problem/eager.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "problem/dropout.h"
#include "problem/elements.h"
#include "problem/oracle_rows.h"
#include "score/interpret.h"

namespace flashlift::problem {
namespace {

float round_to(DType dtype, float value) {
  switch (dtype) {
    case DType::kBF16:
      return bf16_to_float(float_to_bf16(value));
    case DType::kF16:
      return f16_to_float(float_to_f16(value));
    default:
      return value;
  }
}

struct Mod {
  std::vector<TensorView> views;
  std::optional<score::BasicInterpreter<float>> interpreter;

  Mod(const std::optional<Program>& program, const Problem& problem, const AttentionArguments& arguments) {
    if (!program) {
      return;
    }
    for (const Capture& capture : program->captures) {
      const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
      views.push_back(arguments.captures[found - problem.captures.begin()]);
    }
    interpreter.emplace(*program, views);
  }
};

class Eager {
 public:
  Eager(const Problem& problem, const AttentionArguments& arguments)
      : p_(problem),
        a_(arguments),
        score_(problem.score_mod, problem, arguments),
        mask_(problem.mask_mod, problem, arguments) {}

  std::vector<float> run() {
    for (int64_t b = 0; b < a_.q.sizes[0]; ++b) {
      for (int64_t h = 0; h < p_.q_heads; ++h) {
        for (int64_t i = 0; i < a_.q.sizes[2]; ++i) {
          fill_scores(b, h, i);
          softmax(h);
          drop_out(b, h, i);
          multiply_values(b, h);
        }
      }
    }
    return std::move(out_);
  }

 private:
  void fill_scores(int64_t b, int64_t h, int64_t i) {
    const int64_t kv_len = kv_length(p_, a_);
    scores_.assign(kv_len, 0.0f);
    for (int64_t j = 0; j < kv_len; ++j) {
      const score::Coordinates at{.b = static_cast<int32_t>(b),
                                  .h = static_cast<int32_t>(h),
                                  .q = static_cast<int32_t>(i),
                                  .kv = static_cast<int32_t>(j),
                                  .q_len = static_cast<int32_t>(a_.q.sizes[2]),
                                  .kv_len = static_cast<int32_t>(kv_len)};
      const int64_t k_offset = OracleRows::key_offset(p_, a_, a_.k, b, kv_head(h), j);
      float dot = 0;
      for (int64_t d = 0; d < p_.head_dim; ++d) {
        dot += static_cast<float>(read_float(a_.q, row_offset(a_.q, b, h, i) + d * a_.q.strides[3])) *
               static_cast<float>(read_float(a_.k, k_offset + d * a_.k.strides[3]));
      }
      float s = round_to(p_.dtype, dot) * p_.scale;
      s = score_.interpreter ? score_.interpreter->score_mod(s, at) : s;
      const bool kept = !mask_.interpreter || mask_.interpreter->mask_mod(at);
      scores_[j] = kept ? s : -std::numeric_limits<float>::infinity();
    }
  }

  // scores_ become probabilities.
  void softmax(int64_t h) {
    float maximum = -std::numeric_limits<float>::infinity();
    for (const float s : scores_) {
      maximum = std::max(maximum, s);
    }
    for (int64_t r = 0; r < p_.sinks; ++r) {
      maximum = std::max(maximum, sink(h, r));
    }
    if (std::isinf(maximum) && maximum < 0) {
      fill_empty_row();
      return;
    }
    float sum = 0;
    for (int64_t r = 0; r < p_.sinks; ++r) {
      sum += std::exp(sink(h, r) - maximum);
    }
    for (float& s : scores_) {
      s = std::exp(s - maximum);
      sum += s;
    }
    for (float& s : scores_) {
      s = round_to(p_.dtype, p_.normalize ? s / sum : s);
    }
  }

  void fill_empty_row() {
    float p = 0;
    if (p_.empty_rows == EmptyRows::kNan) {
      p = std::numeric_limits<float>::quiet_NaN();
    } else if (p_.empty_rows == EmptyRows::kUniform) {
      p = p_.normalize ? round_to(p_.dtype, 1.0f / static_cast<float>(scores_.size())) : 1.0f;
    }
    std::fill(scores_.begin(), scores_.end(), p);
    empty_without_keys_nan_ = p_.empty_rows == EmptyRows::kNan && scores_.empty();
  }

  void drop_out(int64_t b, int64_t h, int64_t i) {
    for (size_t j = 0; j < scores_.size() && p_.dropout > 0; ++j) {
      const double factor = dropout_factor(p_, a_.dropout_seed, b, h, i, static_cast<int64_t>(j));
      scores_[j] = factor == 0 ? 0.0f : round_to(p_.dtype, scores_[j] * static_cast<float>(factor));
    }
  }

  void multiply_values(int64_t b, int64_t h) {
    for (int64_t d = 0; d < p_.value_dim; ++d) {
      float sum = empty_without_keys_nan_ ? std::numeric_limits<float>::quiet_NaN() : 0.0f;
      for (size_t j = 0; j < scores_.size(); ++j) {
        if (scores_[j] != 0) {
          const int64_t offset = OracleRows::key_offset(p_, a_, a_.v, b, kv_head(h), static_cast<int64_t>(j));
          sum += scores_[j] * static_cast<float>(read_float(a_.v, offset + d * a_.v.strides[3]));
        }
      }
      out_.push_back(round_to(p_.out_dtype, sum));
    }
    empty_without_keys_nan_ = false;
  }

  int64_t kv_head(int64_t h) const { return h * p_.kv_heads / p_.q_heads; }
  float sink(int64_t h, int64_t r) const {
    return static_cast<float>(read_float(*a_.sinks, h * a_.sinks->strides[0] + r * a_.sinks->strides[1]));
  }

  const Problem& p_;
  const AttentionArguments& a_;
  Mod score_;
  Mod mask_;
  bool empty_without_keys_nan_ = false;
  std::vector<float> scores_;
  std::vector<float> out_;
};

}  // namespace

Result<std::vector<float>> run_eager(const Problem& problem, const AttentionArguments& arguments) {
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem, arguments));
  return Eager(problem, arguments).run();
}

}  // namespace flashlift::problem
