#include "random_backward.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <thread>

#include "flashlift/attention.h"
#include "problem/elements.h"
#include "problem/oracle_backward.h"
#include "support/random_problem.h"

namespace flashlift::testing {
namespace {

class Threads : public Executor {
 public:
  explicit Threads(int count) : count_(count) {}
  int concurrency() const override { return count_; }
  void parallel_for(int64_t count, const std::function<void(int64_t)>& body) override {
    std::vector<std::jthread> threads;
    for (int64_t i = 0; i < count; ++i) {
      threads.emplace_back([&body, i] { body(i); });
    }
  }

 private:
  int count_;
};

double epsilon(DType dtype) { return std::ldexp(1.0, dtype == DType::kBF16 ? -8 : dtype == DType::kF16 ? -11 : -24); }

// Relative to the largest element of the gradient, or to what `terms` terms with errors of
// their own add up to: gradients that are 0 are sums of terms that cancel.
std::string compare(const char* name, const TensorView& got, const std::vector<double>& want, double tolerance,
                    double terms) {
  double largest = 0;
  for (const double x : want) {
    largest = std::isfinite(x) ? std::max(largest, std::abs(x)) : largest;
  }
  const int64_t count = got.element_count();
  double error = 0;
  int64_t finite = 0;
  for (int64_t i = 0; i < count; ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int d = got.rank - 1; d >= 0; --d) {
      offset += rest % got.sizes[d] * got.strides[d];
      rest /= got.sizes[d];
    }
    const double expected = want.empty() ? 0.0 : want[static_cast<size_t>(i)];
    const double actual = problem::read_float(got, offset);
    if (!std::isfinite(expected) || !std::isfinite(actual)) {
      const bool same = !std::isfinite(expected) && !std::isfinite(actual);
      if (!same) {
        return fmt::format("{}[{}] is {}, expected {}", name, i, actual, expected);
      }
      continue;
    }
    if (std::abs(actual - expected) > 20 * tolerance * std::max(largest, std::sqrt(terms))) {
      return fmt::format("{}[{}] is {}, expected {}; largest {}", name, i, actual, expected, largest);
    }
    error += std::abs(actual - expected);
    ++finite;
  }
  if (finite > 0 && error / static_cast<double>(finite) > tolerance * std::max(largest, std::sqrt(terms))) {
    return fmt::format("mean error of {} is {}, largest element {}", name, error / static_cast<double>(finite),
                       largest);
  }
  return "";
}

struct Outputs {
  OwnedArguments memory;
  BackwardArguments arguments;
};

Outputs make_outputs(const Problem& p, const AttentionArguments& forward, const TensorView& d_out,
                     const std::optional<TensorView>& d_lse, Random random) {
  Outputs made;
  BackwardArguments& a = made.arguments;
  a.forward = forward;
  a.d_out = d_out;
  a.d_lse = d_lse;
  const auto like = [&](const TensorView& of, DType dtype) {
    return made.memory.strided(dtype, {of.shape().begin(), of.shape().end()}, random, false);
  };
  a.d_q = like(forward.q, p.dtype);
  a.d_k = like(forward.k, p.dtype);
  a.d_v = like(forward.v, p.dtype);
  for (const TensorView& capture : forward.captures) {
    a.d_captures.emplace_back();
    if (is_float(capture.dtype)) {
      a.d_captures.back() = like(capture, DType::kF32);
    }
  }
  if (forward.sinks) {
    a.d_sinks = like(*forward.sinks, DType::kF32);
  }
  return made;
}

// Both were made by the same random numbers, and so lie in memory alike.
bool same_bits(const std::optional<TensorView>& x, const std::optional<TensorView>& y) {
  if (!x) {
    return true;
  }
  for (int64_t i = 0; i < x->element_count(); ++i) {
    int64_t rest = i;
    int64_t offset = 0;
    for (int d = x->rank - 1; d >= 0; --d) {
      offset += rest % x->sizes[d] * x->strides[d];
      rest /= x->sizes[d];
    }
    const auto size = static_cast<int64_t>(size_in_bytes(x->dtype));
    if (std::memcmp(static_cast<std::byte*>(x->data) + offset * size, static_cast<std::byte*>(y->data) + offset * size,
                    static_cast<size_t>(size)) != 0) {
      return false;
    }
  }
  return true;
}

bool same_bits(const BackwardArguments& x, const BackwardArguments& y) {
  bool same =
      same_bits(x.d_q, y.d_q) && same_bits(x.d_k, y.d_k) && same_bits(x.d_v, y.d_v) && same_bits(x.d_sinks, y.d_sinks);
  for (size_t i = 0; i < x.d_captures.size(); ++i) {
    same = same && same_bits(x.d_captures[i], y.d_captures[i]);
  }
  return same;
}

std::string compare_all(const Problem& p, const BackwardArguments& got, const problem::OracleGradients& want) {
  // The products' own rounding, and that of out and lse, which stand for the probabilities.
  const double stored = std::max(epsilon(p.dtype), epsilon(p.out_dtype));
  // <d_out, out> sums value_dim rounded products, which dropout makes larger.
  const double sums = std::sqrt(1.0 + static_cast<double>(p.value_dim) / 16.0) / (1.0 - p.dropout);
  const double tolerance = (2 * stored + 64 * epsilon(DType::kF32)) * sums;
  const auto terms = static_cast<double>(p.q_len * p.q_heads / p.kv_heads);
  const auto all_terms = static_cast<double>(p.batch * p.q_heads * p.q_len);
  for (const std::string& failure :
       {compare("d_q", *got.d_q, want.q, tolerance, 1), compare("d_k", *got.d_k, want.k, tolerance, terms),
        compare("d_v", *got.d_v, want.v, tolerance, terms)}) {
    if (!failure.empty()) {
      return failure;
    }
  }
  for (size_t i = 0; i < got.d_captures.size(); ++i) {
    if (!got.d_captures[i]) {
      continue;
    }
    const std::string failure =
        compare(p.captures[i].name.c_str(), *got.d_captures[i], want.captures[i], 2 * tolerance, all_terms);
    if (!failure.empty()) {
      return failure;
    }
  }
  return got.d_sinks ? compare("d_sinks", *got.d_sinks, want.sinks, 2 * tolerance, all_terms) : "";
}

}  // namespace

std::string check_random_backward(unsigned long seed) {
  Random random(seed);
  Problem problem = draw_problem(random);
  problem.normalize = true;
  problem.page_size = 0;
  const OwnedArguments forward =
      random() % 3 == 0 ? dense_arguments(problem, random) : strided_arguments(problem, random);
  const auto failed = [&](const std::string& what) {
    return fmt::format("seed {}: {}\n{}\n", seed, what, print(problem));
  };
  const Result<Attention> attention = Attention::compile(problem);
  if (!attention.ok()) {
    return failed(attention.error().message);
  }
  if (const Status status = attention->run(forward.views); !status.ok()) {
    return failed(status.error().message);
  }
  OwnedArguments cotangents;
  const auto shape = forward.views.out.shape();
  const TensorView d_out = cotangents.dense(problem.out_dtype, {shape.begin(), shape.end()}, random);
  std::optional<TensorView> d_lse;
  if (problem.want_lse && random() % 2 == 0) {
    d_lse = cotangents.dense(DType::kF32, {shape[0], shape[1], shape[2]}, random);
  }
  const Outputs first = make_outputs(problem, forward.views, d_out, d_lse, random);
  const Outputs second = make_outputs(problem, forward.views, d_out, d_lse, random);
  Threads one(1);
  Threads several(seed % 2 == 0 ? 3 : 8);
  if (const Status status = attention->run_backward(first.arguments, {.executor = &one}); !status.ok()) {
    return failed(status.error().message);
  }
  if (const Status status = attention->run_backward(second.arguments, {.executor = &several}); !status.ok()) {
    return failed(status.error().message);
  }
  if (!same_bits(first.arguments, second.arguments)) {
    return failed("the gradients differ between one thread and several");
  }
  const auto want = problem::run_oracle_backward(problem, forward.views, {.out = d_out, .lse = d_lse});
  if (!want.ok()) {
    return failed(want.error().message);
  }
  const std::string difference = compare_all(problem, first.arguments, *want);
  return difference.empty() ? "" : failed(difference);
}

}  // namespace flashlift::testing
