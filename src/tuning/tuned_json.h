// What tune() found, as JSON: what `flashlift tune --json`, the C interface and Python give.
#pragma once

#include <string>

#include "flashlift/tune.h"

namespace flashlift::tuning {

// An object: problem, device, direction, best (implementation or null, q_tile, kv_tile, splits, threads; 0 is the
// library's own), ms, heuristics_ms, from_database, stored, candidates (each as best, with ms or null, calls and
// failure or null).
std::string to_json(const std::string& problem, bool backward, const Tuned& tuned);

}  // namespace flashlift::tuning
