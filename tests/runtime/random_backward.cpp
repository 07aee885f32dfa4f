#include "random_backward.h"

#include <fmt/format.h>

#include <cstring>

#include "flashlift/attention.h"
#include "problem/check.h"
#include "problem/elements.h"
#include "support/gradients.h"
#include "support/random_problem.h"
#include "support/threads.h"

namespace flashlift::testing {
namespace {

// Both were made by the same random numbers, and so lie in memory alike.
bool same_bits(const std::optional<TensorView>& x, const std::optional<TensorView>& y) {
  const auto size = x ? static_cast<int64_t>(size_in_bytes(x->dtype)) : 0;
  for (int64_t i = 0; x && i < x->element_count(); ++i) {
    const int64_t at = problem::element_offset(*x, i) * size;
    if (std::memcmp(static_cast<std::byte*>(x->data) + at, static_cast<std::byte*>(y->data) + at,
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

}  // namespace

DrawnProblem check_random_backward(unsigned long seed) {
  Random random(seed);
  Problem problem = draw_problem(random);
  problem.normalize = true;
  problem.page_size = 0;
  const OwnedArguments forward =
      random() % 3 == 0 ? dense_arguments(problem, random) : strided_arguments(problem, random);
  const auto failed = [&](const std::string& what) {
    return DrawnProblem{.failure = fmt::format("seed {}: {}\n{}\n", seed, what, print(problem))};
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
  const OwnedGradients first = make_gradients(problem, forward.views, d_out, d_lse, random);
  const OwnedGradients second = make_gradients(problem, forward.views, d_out, d_lse, random);
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
  const Result<problem::CheckReport> report = problem::check_gradients(problem, first.arguments);
  if (!report.ok()) {
    return failed(report.error().message);
  }
  if (!report->ok) {
    return failed(fmt::format("{} (eager's is {:.3g})", report->reason, report->eager_error));
  }
  return {.ratio = report->bound > 0 ? report->mean_error / report->bound : 0};
}

}  // namespace flashlift::testing
