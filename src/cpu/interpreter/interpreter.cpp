#include "cpu/interpreter/interpreter.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <optional>
#include <utility>

#include "problem/differentiate.h"
#include "score/interpret.h"
#include "support/rounding.h"

namespace flashlift::cpu {
namespace {

constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();
// e to this is a normal number smaller than kLeastProbability.
constexpr float kLeastExponent = -87.1f;

// A program, and the indices of its captured tensors in the problem.
class BoundProgram {
 public:
  BoundProgram(const Problem& problem, Program program) : program_(std::move(program)) {
    for (const Capture& capture : program_.captures) {
      const auto found = std::ranges::find(problem.captures, capture.name, &Capture::name);
      places_.push_back(static_cast<size_t>(found - problem.captures.begin()));  // verify(problem) checked the name
    }
  }

  const Program& program() const { return program_; }
  size_t place(int64_t capture) const { return places_[static_cast<size_t>(capture)]; }
  void bind(const CaptureView* captures, std::array<TensorView, kMaxCaptures>& views) const {
    for (size_t i = 0; i < places_.size(); ++i) {
      const CaptureView& given = captures[places_[i]];
      TensorView& view = views[i];
      view.data = const_cast<void*>(given.data);  // it is never written
      view.dtype = program_.captures[i].dtype;
      view.rank = static_cast<int>(program_.captures[i].shape.size());
      std::copy_n(given.sizes, kMaxRank, view.sizes.begin());
      std::copy_n(given.strides, kMaxRank, view.strides.begin());
    }
  }

 private:
  Program program_;
  std::vector<size_t> places_;
};

// A program with the arguments of one call.
class Run {
 public:
  Run(const BoundProgram& program, const CaptureView* captures)
      : program_(program), interpreter_(program.program(), views_) {
    program.bind(captures, views_);
  }
  Run(const Run&) = delete;
  Run& operator=(const Run&) = delete;

  score::BasicInterpreter<float>& operator*() { return interpreter_; }
  float real(ValueId id) const { return static_cast<float>(interpreter_.real(id)); }
  const BoundProgram& program() const { return program_; }

  // The element that a load read in the last run, as an offset in a tensor with these sizes and strides.
  int64_t offset(const Node& load, const CaptureView& tensor) const {
    int64_t offset = 0;
    for (size_t d = 0; d < load.operands.size(); ++d) {
      const int64_t index = interpreter_.integer(load.operands[d]);
      offset += std::clamp<int64_t>(index, 0, tensor.sizes[d] - 1) * tensor.strides[d];
    }
    return offset;
  }

 private:
  const BoundProgram& program_;
  std::array<TensorView, kMaxCaptures> views_{};
  score::BasicInterpreter<float> interpreter_;
};

score::Coordinates coordinates_of(const ScoreArguments& arguments, int64_t row) {
  const RowCoordinates& at = arguments.coordinates[row];
  return {.b = at.b, .h = at.h, .q = at.q, .kv = 0, .q_len = arguments.q_len, .kv_len = arguments.kv_len};
}

class InterpretedScore : public CompiledScore {
 public:
  InterpretedScore(const Problem& problem, Isa isa) : lanes_(tile_kernels(isa).lanes) {
    masked = [](const ScoreArguments* arguments) { self(*arguments).apply(*arguments, true); };
    if (problem.score_mod) {
      unmasked = [](const ScoreArguments* arguments) { self(*arguments).apply(*arguments, false); };
      score_.emplace(problem, *problem.score_mod);
    }
    if (problem.mask_mod) {
      mask_.emplace(problem, *problem.mask_mod);
    }
  }

 private:
  static const InterpretedScore& self(const ScoreArguments& arguments) {
    return static_cast<const InterpretedScore&>(*arguments.code);
  }

  void apply(const ScoreArguments& arguments, bool masks) const {
    std::optional<Run> score;
    std::optional<Run> mask;
    if (score_) {
      score.emplace(*score_, arguments.captures);
    }
    if (masks && mask_) {
      mask.emplace(*mask_, arguments.captures);
    }
    for (int64_t r = 0; r < arguments.rows; ++r) {
      float* row = arguments.s + r * arguments.s_stride;
      score::Coordinates at = coordinates_of(arguments, r);
      float maximum = kMinusInfinity;
      for (int64_t c = 0; c < arguments.columns; ++c) {
        at.kv = static_cast<int32_t>(arguments.kv_begin + c);
        float result = row[c] * arguments.scale;
        if (score) {
          result = (**score).score_mod(result, at);
        }
        if (mask && !(**mask).mask_mod(at)) {
          result = kMinusInfinity;
        }
        row[c] = result;
        maximum = result > maximum ? result : maximum;
      }
      std::fill(row + arguments.columns, row + round_up(arguments.columns, lanes_), kMinusInfinity);
      arguments.maxima[r] = maximum;
    }
  }

  int64_t lanes_;
  std::optional<BoundProgram> score_;
  std::optional<BoundProgram> mask_;
};

// A sum of one load's contributions to its tensor's gradient. It is accumulated in f64 as long as the element is the
// same, which is so along a row if the load's indices do not depend on the key.
struct PendingSum {
  float* to = nullptr;
  double sum = 0;

  void add(float* element, float value) {
    if (element != to) {
      flush();
      to = element;
    }
    sum += static_cast<double>(value);
  }
  void flush() {
    if (to != nullptr) {
      *to += static_cast<float>(sum);
    }
    to = nullptr;
    sum = 0;
  }
};

class InterpretedGradient : public CompiledGradient {
 public:
  InterpretedGradient(const Problem& problem, Isa isa, const std::vector<bool>& wants_gradient)
      : lanes_(tile_kernels(isa).lanes), derivative_(problem::differentiate(problem, wants_gradient)) {
    masked = [](const GradientArguments* arguments) { self(*arguments).apply(*arguments, true); };
    if (derivative_) {
      unmasked = [](const GradientArguments* arguments) { self(*arguments).apply(*arguments, false); };
      score_.emplace(problem, derivative_->body);
    }
    if (problem.mask_mod) {
      mask_.emplace(problem, *problem.mask_mod);
    }
  }

 private:
  static const InterpretedGradient& self(const GradientArguments& arguments) {
    return static_cast<const InterpretedGradient&>(*arguments.scores.code);
  }

  // What a select leaves out, whose weight is 0, gets no gradient, even if ds is NaN.
  static float weigh(float ds, float weight, bool selects) { return selects && weight == 0 ? 0.0f : ds * weight; }

  // Adds ds times the weight of each load to the captured tensors' gradients.
  void add_captured(const Run& score, const GradientArguments& arguments, float ds,
                    std::vector<PendingSum>& sums) const {
    for (size_t i = 0; i < derivative_->loads.size(); ++i) {
      const score::LoadDerivative& load = derivative_->loads[i];
      const Node& node = derivative_->body.nodes[load.load];
      const CaptureView& gradient = arguments.gradients[score.program().place(node.payload)];
      auto* const data = static_cast<float*>(const_cast<void*>(gradient.data));
      sums[i].add(data + score.offset(node, gradient), weigh(ds, score.real(load.weight), load.selects));
    }
  }

  void apply(const GradientArguments& arguments, bool masks) const {
    const ScoreArguments& scores = arguments.scores;
    std::optional<Run> score;
    std::optional<Run> mask;
    std::vector<PendingSum> sums(derivative_ ? derivative_->loads.size() : 0);
    if (score_) {
      score.emplace(*score_, scores.captures);
    }
    if (masks && mask_) {
      mask.emplace(*mask_, scores.captures);
    }
    for (int64_t r = 0; r < scores.rows; ++r) {
      float* p_row = scores.s + r * scores.s_stride;
      float* ds_row = arguments.ds + r * scores.s_stride;
      const RowGradient& state = arguments.rows[r];
      const float least = kLeastProbability / state.factor;
      score::Coordinates at = coordinates_of(scores, r);
      for (int64_t c = 0; c < scores.columns; ++c) {
        at.kv = static_cast<int32_t>(scores.kv_begin + c);
        const float product = p_row[c] * scores.scale;
        const float result = score ? (**score).score_mod(product, at) : product;
        const bool kept = !mask || (**mask).mask_mod(at);
        const float exponent = result - state.shift;
        float p = 0;
        if (kept && result != kMinusInfinity && !(exponent < kLeastExponent)) {
          const float exponential = std::exp(exponent);
          p = exponential < least ? 0.0f : exponential * state.factor;
        }
        float d_score = 0;
        if (p != 0) {  // the weights of a masked element may be infinite
          const float ds = p * (ds_row[c] - state.delta);
          d_score = score ? weigh(ds, score->real(derivative_->d_score), derivative_->selects) : ds;
          if (score) {
            add_captured(*score, arguments, ds, sums);
          }
        }
        p_row[c] = p;
        ds_row[c] = d_score;
      }
      for (PendingSum& sum : sums) {
        sum.flush();
      }
      const int64_t padded = round_up(scores.columns, lanes_);
      std::fill(p_row + scores.columns, p_row + padded, 0.0f);
      std::fill(ds_row + scores.columns, ds_row + padded, 0.0f);
    }
  }

  int64_t lanes_;
  std::optional<score::Derivative> derivative_;
  std::optional<BoundProgram> score_;
  std::optional<BoundProgram> mask_;
};

}  // namespace

std::shared_ptr<const CompiledScore> interpret_score(const Problem& problem, Isa isa) {
  return std::make_shared<const InterpretedScore>(problem, isa);
}

std::shared_ptr<const CompiledGradient> interpret_gradient(const Problem& problem, Isa isa,
                                                           const std::vector<bool>& wants_gradient) {
  return std::make_shared<const InterpretedGradient>(problem, isa, wants_gradient);
}

}  // namespace flashlift::cpu
