// The result of tune() as JSON, for `flashlift tune --json`, the C interface and Python.
#pragma once

#include <string>

#include "flashlift/tune.h"

namespace flashlift::tuning {

// An object with problem, device, direction, best (implementation or null, q_tile, kv_tile, splits, threads; 0 is the
// library's own choice), ms, heuristics_ms, from_database, stored, and candidates (each like best, with ms or null,
// calls, and failure or null).
std::string to_json(const std::string& problem, bool backward, const Tuned& tuned);

}  // namespace flashlift::tuning
