// The choices of a pass of attention: implementation, tile sizes, splits, threads. tune.h measures which ones are the
// fastest.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

// A field that is empty or 0 leaves the choice to the library.
struct Tuning {
  std::string implementation = {};
  int64_t q_tile = 0;   // CPU, forward: query rows per task
  int64_t kv_tile = 0;  // CPU: keys per block; backward: keys per task
  int64_t splits = 0;   // CPU, forward: number of parts that the keys of a few rows are split into
  int threads = 0;      // CPU: the largest number of threads to use

  bool operator==(const Tuning&) const = default;
};
// "cpu_avx512 q_tile=96 threads=1", or "heuristics" if all choices are left to the library.
std::string to_string(const Tuning& tuning);

// How compile() and tune() use the database of tuning results.
enum class TuningPolicy : uint8_t {
  kFromEnvironment,  // FLASHLIFT_TUNING: off, read or write; without it kWrite
  kOff,              // compile() does not read it, tune() does not write it
  kRead,             // compile() reads it; tune() returns an entry that it has, and otherwise measures without writing
  kWrite,            // compile() reads it; tune() measures and writes the result
};

}  // namespace flashlift

#pragma GCC visibility pop
