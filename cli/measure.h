// Compiles and times problems, for `run` and `bench`.
#pragma once

#include <string>

#include "cli/output.h"
#include "flashlift/attention.h"
#include "tuning/inputs.h"
#include "tuning/target.h"

namespace flashlift::cli {

using tuning::Inputs;
using tuning::Target;

struct CompiledAttention {
  Attention attention;
  double compile_ms = 0;
};
Result<CompiledAttention> compile(const Problem& problem, const CompileOptions& options);

struct Measurement {
  double compile_ms = 0;
  double ms = 0;  // median of the calls
  int calls = 0;
  double gflops = 0;
  int64_t workspace_bytes = 0;
  bool backward = false;
};

// Floating point operations of one call: 2 (head_dim + value_dim) for each kept score; for a backward call, 2 (3
// head_dim + 2 value_dim). The benchmarks use the same count. For a large mask, only rows at equal distances are
// counted.
double count_flops(const Problem& problem, const Inputs& inputs);

// Calls it once to warm up, then until the calls took `seconds` together (at least 3 calls).
Result<Measurement> measure(const CompiledAttention& compiled, const Inputs& inputs, Target& target, double seconds);

// The fields that `run --json` and `bench --json` share, in the documented order.
Json to_json(const Attention& attention, const std::string& device, const Measurement& measurement);

}  // namespace flashlift::cli
