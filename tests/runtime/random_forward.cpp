#include "random_forward.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "flashlift/attention.h"
#include "problem/check.h"
#include "support/random_problem.h"

namespace flashlift::testing {

DrawnProblem check_random_forward(unsigned long seed, const DrawOptions& options) {
  Random random(seed);
  Problem problem = draw_problem(random);
  if (problem.kv_len > 0 && random() % 8 == 0) {  // forward only
    constexpr int64_t kPageSizes[] = {1, 3, 16, 64, 200};
    problem.page_size = std::min(kPageSizes[random() % std::size(kPageSizes)], problem.kv_len);
    problem.kv_len -= problem.kv_len % problem.page_size;
  }
  const OwnedArguments arguments =
      random() % 3 == 0 ? dense_arguments(problem, random) : strided_arguments(problem, random);
  const auto failed = [&](const std::string& what) {
    return DrawnProblem{.failure = fmt::format("seed {}: {}\n{}\n", seed, what, print(problem))};
  };
  const Result<Attention> attention = Attention::compile(problem, options.compile_options(problem));
  if (!attention.ok()) {
    return failed(attention.error().message);
  }
  if (const Status status = attention->run(arguments.views); !status.ok()) {
    return failed(status.error().message);
  }
  const Result<problem::Judgement> report = problem::check_output(problem, arguments.views);
  if (!report.ok()) {
    return failed(report.error().message);
  }
  if (!report->ok) {
    return failed(report->reason);
  }
  return {.judgement = *report};
}

}  // namespace flashlift::testing
