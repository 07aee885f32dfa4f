#include "problem/check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstring>

#include "problem/elements.h"
#include "problem/score_steps.h"

namespace flashlift::problem {
namespace {

// The fraction of rows (of `width` magnitudes each) whose query sees a key.
double seeing_part(const std::vector<double>& magnitudes, int64_t width) {
  const auto row = static_cast<size_t>(width);
  size_t seeing = 0;
  for (size_t at = 0; at < magnitudes.size(); at += row) {
    seeing += magnitudes[at] > 0 ? 1 : 0;
  }
  return static_cast<double>(seeing * row) / static_cast<double>(std::max<size_t>(magnitudes.size(), 1));
}

// The number of rows with independent errors, if all queries see a key. Queries along a stride of 0 are a single query.
// Other heads and batches are independent if their keys differ.
double independent_rows(const AttentionArguments& arguments) {
  const TensorView& q = arguments.q;
  const TensorView& k = arguments.k;
  const int64_t batch = q.strides[0] == 0 && k.strides[0] == 0 ? 1 : q.sizes[0];
  const int64_t heads = q.strides[1] != 0 ? q.sizes[1] : k.strides[1] != 0 ? k.sizes[1] : 1;
  const int64_t length = q.strides[2] == 0 ? 1 : q.sizes[2];
  return static_cast<double>(batch * heads * length);
}

// Compares lse and row maxima, which are f32 for any dtype.
class RowCheck {
 public:
  RowCheck(const Problem& problem, const AttentionArguments& arguments)
      : arguments_(arguments),
        steps_(problem, arguments),
        has_steps_(problem.score_mod && has_score_steps(*problem.score_mod)) {}

  void run(const char* name, const TensorView& got, const std::vector<double>& want, Range (ScoreSteps::*range)() const,
           Judgement& judgement) {
    for (size_t i = 0; i < want.size() && judgement.ok; ++i) {
      const double found = read_float(got, element_offset(got, static_cast<int64_t>(i)));
      if (is_near(found, {.low = want[i], .high = want[i]}) || (has_steps_ && is_near(found, range_of(i, range)))) {
        continue;
      }
      judgement.tensor = name;
      judgement.ok = false;
      judgement.reason = fmt::format("{} of row {}: expected {}, got {}", name, i, want[i], found);
    }
  }

 private:
  // Whether a score, or a score plus a logarithm of its order, is within the range, with a relative tolerance for the
  // error of a dot product.
  static bool is_near(double found, const Range& range) {
    if (std::isnan(found) || !std::isfinite(range.low) || !std::isfinite(range.high)) {
      return (std::isnan(found) && std::isnan(range.low)) || found == range.low || found == range.high;
    }
    const double slack = 1e-4 * std::max({1.0, std::abs(range.low), std::abs(range.high)});
    return found >= range.low - slack && found <= range.high + slack;
  }

  Range range_of(size_t row, Range (ScoreSteps::*range)() const) {
    const auto i = static_cast<int64_t>(row);
    const int64_t heads = arguments_.q.sizes[1];
    const int64_t queries = arguments_.q.sizes[2];
    steps_.compute(i / queries / heads, i / queries % heads, i % queries);
    return (steps_.*range)();
  }

  const AttentionArguments& arguments_;
  ScoreSteps steps_;
  bool has_steps_;
};

// Compares the gradients of a call with the expected ones.
class GradientCheck {
 public:
  GradientCheck(const AttentionArguments& forward, const GradientReference& reference)
      : query_rows_(independent_rows(forward) * seeing_part(reference.eager.q.magnitudes, forward.q.sizes[3])),
        want_(reference.want),
        eager_(reference.eager) {}

  Judgement run(const Problem& problem, const BackwardArguments& arguments) {
    add("d_q", arguments.d_q, problem.head_dim, want_.q, eager_.q);
    add("d_k", arguments.d_k, problem.head_dim, want_.k, eager_.k);
    add("d_v", arguments.d_v, problem.value_dim, want_.v, eager_.v);
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      add(fmt::format("the gradient of `{}`", problem.captures[i].name), arguments.d_captures[i], 1, want_.captures[i],
          eager_.captures[i], eager_.captures[i].parts.deviations(want_.capture_parts[i]));
    }
    add("d_sinks", arguments.d_sinks, 1, want_.sinks, eager_.sinks, eager_.sinks.parts.deviations(want_.sink_parts));
    return worst_;
  }

 private:
  // The elements of a row of `width` share their errors.
  void add(const std::string& name, const std::optional<TensorView>& got, int64_t width,
           const std::vector<double>& want, const EagerGradient& eager, const std::vector<double>& deviations = {}) {
    if (!got) {
      return;
    }
    const int64_t rows = got->element_count() / width;
    Judgement judgement = judge({.name = name,
                                 .got = *got,
                                 .want = want,
                                 .eager = eager.values,
                                 .deviations = deviations,
                                 .magnitudes = eager.magnitudes,
                                 .row_width = width,
                                 // All contributions of a query's row share the error of its softmax.
                                 .samples = std::min(query_rows_, static_cast<double>(rows)),
                                 .same_non_finite = false});
    if (worst_.tensor.empty() || (worst_.ok && (!judgement.ok || judgement.ratio() > worst_.ratio()))) {
      worst_ = std::move(judgement);
    }
  }

  double query_rows_;
  const OracleGradients& want_;
  const EagerGradients& eager_;
  Judgement worst_;
};

}  // namespace

namespace {

// The output of the same call with |v| in place of v.
Result<std::vector<double>> magnitudes_of_output(const Problem& problem, const AttentionArguments& arguments) {
  const TensorView& v = arguments.v;
  const size_t size = size_in_bytes(v.dtype);
  std::vector<std::byte> memory(static_cast<size_t>(v.element_count()) * size);
  for (int64_t i = 0; i < v.element_count(); ++i) {
    std::byte* to = memory.data() + static_cast<size_t>(i) * size;
    std::memcpy(to, static_cast<const std::byte*>(v.data) + element_offset(v, i) * static_cast<int64_t>(size), size);
    to[size - 1] &= std::byte{0x7f};  // clears the sign
  }
  AttentionArguments unsigned_arguments = arguments;
  unsigned_arguments.v = dense_view(memory.data(), v.dtype, v.shape());
  FLASHLIFT_ASSIGN_OR_RETURN(OracleResult result, run_oracle(problem, unsigned_arguments));
  return std::move(result.out);
}

}  // namespace

Result<OutputReference> compute_reference(const Problem& problem, const AttentionArguments& arguments,
                                          const RowDone& row_done) {
  OutputReference reference;
  FLASHLIFT_ASSIGN_OR_RETURN(reference.want, run_oracle(problem, arguments, row_done));
  FLASHLIFT_ASSIGN_OR_RETURN(reference.eager, run_eager(problem, arguments, row_done));
  // If values have only a few elements, all of them may be sums that cancel.
  constexpr int64_t kFewNumbers = 4;
  if (arguments.v.sizes[3] <= kFewNumbers || arguments.v.strides[3] == 0) {
    FLASHLIFT_ASSIGN_OR_RETURN(reference.magnitudes, magnitudes_of_output(problem, arguments));
  }
  return reference;
}

Result<GradientReference> compute_reference(const Problem& problem, const BackwardArguments& arguments,
                                            const RowDone& row_done) {
  const OracleCotangents cotangents{.out = arguments.d_out, .lse = arguments.d_lse};
  GradientReference reference;
  FLASHLIFT_ASSIGN_OR_RETURN(reference.want, run_oracle_backward(problem, arguments.forward, cotangents, row_done));
  FLASHLIFT_ASSIGN_OR_RETURN(reference.eager, run_eager_backward(problem, arguments.forward, cotangents, row_done));
  return reference;
}

Judgement check_output(const Problem& problem, const AttentionArguments& arguments, const OutputReference& reference) {
  Judgement judgement = judge({.name = "out",
                               .got = arguments.out,
                               .want = reference.want.out,
                               .eager = reference.eager.out,
                               .magnitudes = reference.magnitudes,
                               .row_width = problem.value_dim,
                               .samples = independent_rows(arguments)});
  RowCheck rows(problem, arguments);
  if (arguments.lse) {
    rows.run("lse", *arguments.lse, reference.want.lse, &ScoreSteps::lse, judgement);
  }
  if (arguments.row_max) {
    rows.run("row_max", *arguments.row_max, reference.want.row_max, &ScoreSteps::row_max, judgement);
  }
  return judgement;
}

Judgement check_gradients(const Problem& problem, const BackwardArguments& arguments,
                          const GradientReference& reference) {
  return GradientCheck(arguments.forward, reference).run(problem, arguments);
}

Result<Judgement> check_output(const Problem& problem, const AttentionArguments& arguments, const RowDone& row_done) {
  FLASHLIFT_ASSIGN_OR_RETURN(const OutputReference reference, compute_reference(problem, arguments, row_done));
  return check_output(problem, arguments, reference);
}

Result<Judgement> check_gradients(const Problem& problem, const BackwardArguments& arguments, const RowDone& row_done) {
  FLASHLIFT_ASSIGN_OR_RETURN(const GradientReference reference, compute_reference(problem, arguments, row_done));
  return check_gradients(problem, arguments, reference);
}

}  // namespace flashlift::problem
