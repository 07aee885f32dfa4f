#include "cli/measure.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <vector>

#include "problem/bound_problem.h"
#include "score/interpret.h"
#include "visits/visits.h"

#ifdef FLASHLIFT_HAS_CPU
#include "runtime/tbb_executor.h"
#endif

namespace flashlift::cli {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// The number of threads that run() uses if it gets no executor.
int default_concurrency() {
#ifdef FLASHLIFT_HAS_CPU
  return runtime::default_executor().concurrency();
#else
  return 1;
#endif
}

// The fraction of kept scores. If there are many scores, only rows at equal distances are counted.
double kept_fraction(const Problem& problem, const std::vector<TensorView>& captures) {
  constexpr int64_t kMostScores = 1 << 22;
  constexpr int64_t kLeastRows = 16;
  const visits::Visits visits(problem, problem.batch, problem.q_len, problem.kv_len, captures);
  if (visits.all_full()) {
    return 1;
  }
  std::vector<TensorView> of_mask;
  std::optional<score::Interpreter> mask;
  if (problem.mask_mod) {
    of_mask = problem::views_of(*problem.mask_mod, problem, captures);
    mask.emplace(*problem.mask_mod, of_mask);
  }
  const int64_t batches = visits.depends_on_b() ? problem.batch : 1;
  const int64_t heads = visits.depends_on_h() ? problem.q_heads : 1;
  const int64_t most_rows = kMostScores / std::max<int64_t>(batches * heads * problem.kv_len, 1);
  const int64_t rows = std::min(problem.q_len, std::max(most_rows, kLeastRows));
  int64_t kept = 0;
  visits::VisitRow keys;
  for (int64_t b = 0; b < batches; ++b) {
    for (int64_t h = 0; h < heads; ++h) {
      for (int64_t i = 0; i < rows; ++i) {
        const int64_t q = (2 * i + 1) * problem.q_len / (2 * rows);
        visits.row(b, h, h + 1, q, q + 1, 1, keys);
        for (const visits::TileRun& run : keys.runs) {
          if (run.kind == visits::TileKind::kFull || !mask) {
            kept += run.end - run.begin;
            continue;
          }
          for (int64_t kv = run.begin; kv < run.end; ++kv) {
            kept += mask->mask_mod({.b = static_cast<int32_t>(b),
                                    .h = static_cast<int32_t>(h),
                                    .q = static_cast<int32_t>(q),
                                    .kv = static_cast<int32_t>(kv),
                                    .q_len = static_cast<int32_t>(problem.q_len),
                                    .kv_len = static_cast<int32_t>(problem.kv_len)});
          }
        }
      }
    }
  }
  return static_cast<double>(kept) / std::max(1.0, static_cast<double>(batches * heads * rows * problem.kv_len));
}

}  // namespace

Result<CompiledAttention> compile(const Problem& problem, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  FLASHLIFT_ASSIGN_OR_RETURN(Attention attention, Attention::compile(problem, options));
  return CompiledAttention{std::move(attention), milliseconds_since(start)};
}

double count_flops(const Problem& problem, const Inputs& inputs) {
  const int64_t multiply_adds = inputs.backward() != nullptr ? 3 * problem.head_dim + 2 * problem.value_dim
                                                             : problem.head_dim + problem.value_dim;
  return 2.0 * kept_fraction(problem, inputs.arguments().captures) *
         static_cast<double>(problem.batch * problem.q_heads) * static_cast<double>(problem.q_len) *
         static_cast<double>(problem.kv_len) * static_cast<double>(multiply_adds);
}

Result<Measurement> measure(const CompiledAttention& compiled, const Inputs& inputs, Target& target, double seconds) {
  constexpr int kLeastCalls = 3;
  constexpr int kMostCalls = 10000;
  const Attention& attention = compiled.attention;
  const double flops = count_flops(attention.problem(), inputs);
  FLASHLIFT_RETURN_IF_ERROR(target.time(attention));

  std::vector<double> times;
  double total = 0;
  while (times.size() < kLeastCalls || (total < seconds * 1e3 && times.size() < kMostCalls)) {
    FLASHLIFT_ASSIGN_OR_RETURN(const double milliseconds, target.time(attention));
    times.push_back(milliseconds);
    total += milliseconds;
  }
  std::nth_element(times.begin(), times.begin() + times.size() / 2, times.end());

  Measurement measurement;
  measurement.compile_ms = compiled.compile_ms;
  measurement.ms = times[times.size() / 2];
  measurement.calls = static_cast<int>(times.size());
  measurement.gflops = flops / measurement.ms * 1e-6;
  measurement.backward = inputs.backward() != nullptr;
  measurement.workspace_bytes = measurement.backward ? attention.backward_workspace_bytes(default_concurrency())
                                                     : attention.workspace_bytes(default_concurrency());
  return measurement;
}

Json to_json(const Attention& attention, const std::string& device, const Measurement& measurement) {
  return {{"problem", print(attention.problem())},
          {"device", device},
          {"implementation", attention.implementation()},
          {"direction", measurement.backward ? "backward" : "forward"},
          {"ms", measurement.ms},
          {"gflops", measurement.gflops},
          {"workspace_bytes", measurement.workspace_bytes},
          {"compile_ms", measurement.compile_ms},
          {"calls", measurement.calls}};
}

}  // namespace flashlift::cli
