#include "random_backward.h"

#include <fmt/format.h>

#include "flashlift/attention.h"
#include "problem/check.h"
#include "support/gradients.h"
#include "support/random_problem.h"
#include "support/threads.h"

namespace flashlift::testing {

DrawnProblem check_random_backward(unsigned long seed, const DrawOptions& options) {
  Random random(seed);
  Problem problem = draw_problem(random);
  problem.normalize = true;
  problem.page_size = 0;
  problem.d_out_like_inputs = seed % 2 == 0;
  const OwnedArguments forward =
      random() % 3 == 0 ? dense_arguments(problem, random) : strided_arguments(problem, random);
  const auto failed = [&](const std::string& what) {
    return DrawnProblem{.failure = fmt::format("seed {}: {}\n{}\n", seed, what, print(problem))};
  };
  const Result<Attention> attention = Attention::compile(problem, options.compile_options(problem));
  if (!attention.ok()) {
    return failed(attention.error().message);
  }
  if (const Status status = attention->run(forward.views); !status.ok()) {
    return failed(status.error().message);
  }
  OwnedArguments cotangents;
  const auto shape = forward.views.out.shape();
  const TensorView d_out = cotangents.dense(problem.d_out_dtype(), {shape.begin(), shape.end()}, random);
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
  if (const std::string which = differing_bits(first.arguments, second.arguments); !which.empty()) {
    return failed(which + " differs between one thread and several");
  }
  const Result<problem::Judgement> report = problem::check_gradients(problem, first.arguments);
  if (!report.ok()) {
    return failed(report.error().message);
  }
  if (!report->ok) {
    return failed(report->reason);
  }
  return {.judgement = *report};
}

}  // namespace flashlift::testing
