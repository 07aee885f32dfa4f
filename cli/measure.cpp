#include "cli/measure.h"

#include <algorithm>
#include <chrono>

#include "support/error.h"

#ifdef FLASHLIFT_HAS_CPU
#include "runtime/tbb_executor.h"
#endif

namespace flashlift::cli {
namespace {

double milliseconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start).count();
}

// Of the threads that run() uses where it is lent none.
int default_concurrency() {
#ifdef FLASHLIFT_HAS_CPU
  return runtime::default_executor().concurrency();
#else
  return 1;
#endif
}

}  // namespace

Result<CompiledAttention> compile(const Problem& problem, const CompileOptions& options) {
  const auto start = std::chrono::steady_clock::now();
  FLASHLIFT_ASSIGN_OR_RETURN(Attention attention, Attention::compile(problem, options));
  return CompiledAttention{std::move(attention), milliseconds_since(start)};
}

Result<double> count_flops(const Problem& problem, const Inputs& inputs) {
  FLASHLIFT_ASSIGN_OR_RETURN(const TileCounts tiles, count_tiles(problem, inputs.arguments().captures, 128, 128));
  const auto visited = static_cast<double>(tiles.full + tiles.partial);
  const double fraction = visited / std::max(1.0, visited + static_cast<double>(tiles.skipped));
  const int64_t multiply_adds = inputs.backward() != nullptr ? 3 * problem.head_dim + 2 * problem.value_dim
                                                             : problem.head_dim + problem.value_dim;
  return 2.0 * fraction * static_cast<double>(problem.batch * problem.q_heads) * static_cast<double>(problem.q_len) *
         static_cast<double>(problem.kv_len) * static_cast<double>(multiply_adds);
}

Result<Measurement> measure(const CompiledAttention& compiled, const Inputs& inputs, Target& target, double seconds) {
  constexpr int kLeastCalls = 3;
  constexpr int kMostCalls = 10000;
  const Attention& attention = compiled.attention;
  FLASHLIFT_ASSIGN_OR_RETURN(const double flops, count_flops(attention.problem(), inputs));
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
