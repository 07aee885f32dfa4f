// Runs a compiled score or mask program on chosen coordinates, for tests.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "cpu/score_function.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

// A problem with these programs, large enough that all coordinates are valid.
inline Problem problem_of_programs(const std::string& text) {
  const Result<Problem> problem = parse_problem("attn b1 h1 s1 d1 " + text);
  EXPECT_TRUE(problem.ok()) << text << ": " << problem.error().message;
  return *problem;
}

class CompiledProgram {
 public:
  CompiledProgram(const Problem& problem, Isa isa, const std::vector<TensorView>& captures) {
    Result<std::shared_ptr<const CompiledScore>> compiled = compile_score(problem, isa);
    EXPECT_TRUE(compiled.ok()) << compiled.error().message;
    score_ = *compiled;
    bind(captures);
  }

  // Sets the tensors that later runs read.
  void bind(const std::vector<TensorView>& captures) {
    captures_.clear();
    for (const TensorView& tensor : captures) {
      CaptureView view{tensor.data, {}, {}};
      std::copy(tensor.sizes.begin(), tensor.sizes.end(), view.sizes);
      std::copy(tensor.strides.begin(), tensor.strides.end(), view.strides);
      captures_.push_back(view);
    }
  }

  // The scores after the programs, row by row; `scores` has columns floats per row.
  std::vector<float> run(std::vector<float> scores, const std::vector<RowCoordinates>& rows, int64_t columns,
                         int64_t kv_begin = 0, bool masked = true, std::vector<float>* maxima = nullptr) {
    const int64_t stride = (columns + 15) / 16 * 16;
    std::vector<float> padded(rows.size() * static_cast<size_t>(stride), 0.0f);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy_n(scores.begin() + static_cast<int64_t>(r) * columns, columns,
                  padded.begin() + static_cast<int64_t>(r) * stride);
    }
    std::vector<float> row_maxima(rows.size());
    const ScoreArguments arguments{.s = padded.data(),
                                   .s_stride = stride,
                                   .rows = static_cast<int64_t>(rows.size()),
                                   .kv_begin = kv_begin,
                                   .columns = columns,
                                   .coordinates = rows.data(),
                                   .captures = captures_.data(),
                                   .maxima = row_maxima.data(),
                                   .q_len = 1000,
                                   .kv_len = 2000,
                                   .scale = 1,
                                   .code = score_.get()};
    (masked ? score_->masked : score_->unmasked)(&arguments);
    for (size_t r = 0; r < rows.size(); ++r) {
      std::copy_n(padded.begin() + static_cast<int64_t>(r) * stride, columns,
                  scores.begin() + static_cast<int64_t>(r) * columns);
    }
    if (maxima != nullptr) {
      *maxima = row_maxima;
    }
    return scores;
  }

 private:
  std::shared_ptr<const CompiledScore> score_;
  std::vector<CaptureView> captures_;
};

// The instruction sets of this machine.
inline std::vector<Isa> available_isas() {
  std::vector<Isa> isas;
  for (const Isa isa : kAllIsas) {
    if (detect_capabilities().has_all(needs_of(isa))) {
      isas.push_back(isa);
    }
  }
  return isas;
}

}  // namespace flashlift::cpu
