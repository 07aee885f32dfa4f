// Tuning: measures the candidates for a problem on this machine, in turns. The fastest one is stored in a database
// (SQLite, in the cache's folder) that processes share, and Attention::compile() reads it from there.
//
//   Result<Tuned> tuned = tune(problem);                        // measures for seconds
//   Result<Attention> attention = Attention::compile(problem);  // as tuned, in this process and in others
//
// Only tune() measures; compiling and running do not.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlift/attention.h"
#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tuning.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

struct TuneOptions {
  DeviceKind device = DeviceKind::kCpu;
  int device_ordinal = 0;
  bool backward = false;      // the backward pass, which is tuned separately
  bool heads_inside = false;  // tensors lie in memory as [batch, length, heads, depth]
  double seconds = 2;         // about how long to measure
  TuningPolicy policy = TuningPolicy::kFromEnvironment;
  // Called between measurements with the fraction that is done, from 0 to 1, and the number of candidates left. Return
  // false to end the measurement: tune() then returns kCancelled.
  std::function<bool(double done, int left)> on_progress = {};
};

struct TuneCandidate {
  Tuning tuning;
  double ms = 0;        // median of its calls
  int calls = 0;        // slow candidates drop out early
  std::string failure;  // why it did not run
};

struct Tuned {
  std::string device;                     // the database's name for this machine's device
  Tuning best;                            // heuristics if no candidate is significantly faster
  double ms = 0;                          // of the best
  double heuristics_ms = 0;               // of the untuned choice
  bool from_database = false;             // nothing was measured
  bool stored = false;                    // written into the database
  std::vector<TuneCandidate> candidates;  // the fastest first
};

// Errors: those of Attention::compile(); kNotFound without SQLite; a folder that cannot be written, if there is a
// result to store; not enough memory; kCancelled.
Result<Tuned> tune(const Problem& problem, const TuneOptions& options = {});

}  // namespace flashlift

#pragma GCC visibility pop
