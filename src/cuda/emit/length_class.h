// Classes of calls, by their number of queries.
#pragma once

#include <cstddef>
#include <cstdint>

#include "flashlift/problem.h"

namespace flashlift::cuda {

// The fastest kernel and its tiles depend on the number of queries. A kernel is compiled once for each class, at the
// class's first call. The classes are in ascending order; numbers are of queries.
enum class LengthClass : uint8_t { kFewRows, kUpTo1024, kUpTo2048, kUpTo4096, kLonger };
inline constexpr size_t kLengthClasses = 5;

// For at most this many query rows that share keys and values, a call's time is that of reading these: kFewRows.
inline constexpr int64_t kFewRowsAtMost = 64;

inline LengthClass length_class(const Problem& problem, int64_t q_len) {
  if (q_len * (problem.q_heads / problem.kv_heads) <= kFewRowsAtMost) {
    return LengthClass::kFewRows;
  }
  return q_len <= 1024   ? LengthClass::kUpTo1024
         : q_len <= 2048 ? LengthClass::kUpTo2048
         : q_len <= 4096 ? LengthClass::kUpTo4096
                         : LengthClass::kLonger;
}

}  // namespace flashlift::cuda
