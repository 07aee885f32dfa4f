// Tuning: the candidates for a problem measured beside each other on this machine. The fastest one is kept in a
// database (SQLite, in the cache's folder) that processes share, and Attention::compile() takes it from there.
//
//   Result<Tuned> tuned = tune(problem);                        // measures for seconds
//   Result<Attention> attention = Attention::compile(problem);  // as tuned, in this process and in others
//
// Nothing else measures: no compile and no call does.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "flashlift/attention.h"
#include "flashlift/problem.h"
#include "flashlift/result.h"
#include "flashlift/tuning.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

struct TuneOptions {
  DeviceKind device = DeviceKind::kCpu;
  int device_ordinal = 0;
  bool backward = false;      // the backward pass; the two are tuned each by itself
  bool heads_inside = false;  // tensors lie in memory as [batch, length, heads, depth]
  double seconds = 2;         // how long to measure, about
  TuningPolicy policy = TuningPolicy::kFromEnvironment;
  // Called between measurements with the part that is done, from 0 to 1, and how many candidates are left. False ends
  // the measuring: then tune() returns kCancelled.
  std::function<bool(double done, int left)> on_progress;
};

struct TuneCandidate {
  Tuning tuning;
  double ms = 0;        // median of its calls
  int calls = 0;        // slow ones drop out early
  std::string failure;  // why it did not run
};

struct Tuned {
  std::string device;                     // what the database calls this machine's
  Tuning best;                            // heuristics where nothing is faster by more than chance
  double ms = 0;                          // of the best
  double heuristics_ms = 0;               // of what would run untuned
  bool from_database = false;             // nothing was measured
  bool stored = false;                    // put into the database
  std::vector<TuneCandidate> candidates;  // the fastest first
};

// Errors: what Attention::compile() says; kNotFound without SQLite, and a folder that cannot be written, if something
// is to be stored; more memory than there is; kCancelled.
Result<Tuned> tune(const Problem& problem, const TuneOptions& options = {});

}  // namespace flashlift

#pragma GCC visibility pop
