// Classes of calls, by their number of queries.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "flashlift/problem.h"
#include "support/rounding.h"

namespace flashlift::cuda {

// The fastest kernel and its tiles depend on the number of queries. A kernel is compiled once for each class, at the
// class's first call. The classes are in ascending order; numbers are of queries. kFewRows: calls that kernels for few
// rows compute sooner (has_few_rows()).
enum class LengthClass : uint8_t { kFewRows, kUpTo1024, kUpTo2048, kUpTo4096, kLonger };
inline constexpr size_t kLengthClasses = 5;

// The class among those of kernels for many rows.
inline LengthClass length_class(int64_t q_len) {
  return q_len <= 1024   ? LengthClass::kUpTo1024
         : q_len <= 2048 ? LengthClass::kUpTo2048
         : q_len <= 4096 ? LengthClass::kUpTo4096
                         : LengthClass::kLonger;
}

struct CallSizes {
  int64_t batch, q_len, kv_len;
};
inline CallSizes sizes_of(const Problem& problem) { return {problem.batch, problem.q_len, problem.kv_len}; }

// Kernels for few rows compute units of 16 rows, of all query heads that share keys, and several blocks share the keys
// of a unit; each unit reads them. The others compute tiles of one head's queries, however few there are, in rounds of
// one tile for each multiprocessor. So few rows are better if units are few for the rounds of tiles that they replace.
// (Measured on an H200, where a round takes as long as 200 units of 128 columns, or 500 of 64:
// docs/lessons/cuda_decode.md.)
inline bool has_few_rows(const Problem& problem, const CallSizes& call, int multiprocessors) {
  constexpr int64_t kUnitRows = 16;
  constexpr int64_t kTileRows = 128;
  constexpr int64_t kNarrow = 64;  // columns
  constexpr double kUnits = 1.2;   // for each tile of a round
  constexpr double kNarrowUnits = 2.4;
  // The units of a short call take longer to begin and to end than to read keys.
  constexpr int64_t kShortRows = 64;
  constexpr int64_t kShortKeys = 1024;
  const int64_t rows = call.q_len * (problem.q_heads / problem.kv_heads);
  if (rows > kShortRows && call.kv_len < kShortKeys) {
    return false;
  }
  const int64_t units = call.batch * problem.kv_heads * divide_up(rows, kUnitRows);
  const int64_t tiles = call.batch * problem.q_heads * divide_up(call.q_len, kTileRows);
  const int64_t together = std::max(multiprocessors, 1);
  const int64_t of_rounds = std::max<int64_t>(divide_up(tiles, together), 1) * together;
  const bool narrow = std::max(problem.head_dim, problem.value_dim) <= kNarrow;
  return static_cast<double>(units) <= (narrow ? kNarrowUnits : kUnits) * static_cast<double>(of_rounds);
}

inline LengthClass length_class(const Problem& problem, const CallSizes& call, int multiprocessors) {
  return has_few_rows(problem, call, multiprocessors) ? LengthClass::kFewRows : length_class(call.q_len);
}

// Its classes on all devices.
inline std::vector<LengthClass> length_classes(const Problem& problem, const CallSizes& call) {
  constexpr int kMostMultiprocessors = 256;
  std::vector<LengthClass> classes;
  for (int multiprocessors = 1; multiprocessors <= kMostMultiprocessors; ++multiprocessors) {
    const LengthClass one = length_class(problem, call, multiprocessors);
    if (std::ranges::find(classes, one) == classes.end()) {
      classes.push_back(one);
    }
  }
  return classes;
}

}  // namespace flashlift::cuda
