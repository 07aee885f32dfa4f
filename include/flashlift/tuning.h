// How a pass of attention runs, where that is not left to the library. tune.h measures which way is the fastest.
#pragma once

#include <cstdint>
#include <string>

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift {

// What is empty or 0 is left to the library.
struct Tuning {
  std::string implementation;
  int64_t q_tile = 0;   // CPU, forward: rows of a task
  int64_t kv_tile = 0;  // CPU: keys of a block; backward: keys of a task
  int64_t splits = 0;   // CPU, forward: parts that the keys of a few rows are cut into
  int threads = 0;      // CPU: at most so many, however many the executor has

  bool operator==(const Tuning&) const = default;
};
// "cpu_avx512 q_tile=96 threads=1", or "heuristics" where all is left to the library.
std::string to_string(const Tuning& tuning);

// What is done with the database of what was tuned.
enum class TuningPolicy : uint8_t {
  kFromEnvironment,  // FLASHLIFT_TUNING: off, read or write; without it kWrite
  kOff,              // compile() takes nothing from it, tune() puts nothing there
  kRead,             // compile() takes from it; tune() gives what it finds there, and otherwise only measures
  kWrite,            // compile() takes from it; tune() measures and puts the result there
};

}  // namespace flashlift

#pragma GCC visibility pop
