// Judges results: C++ tests, Python tests, the command line and the benchmarks all use it.
#pragma once

#include <span>
#include <string>

#include "flashlift/tensor.h"

namespace flashlift::problem {

// One tensor of a result and its references. All spans are dense, in the tensor's logical order; an empty one stands
// for zeros.
struct Subject {
  std::string name;
  const TensorView& got;                    // f64, f32, bf16 or f16
  std::span<const double> want;             // in double precision
  std::span<const float> eager;             // unfused maths in the problem's own dtype
  std::span<const double> deviations = {};  // of eager's errors, if one sample is not enough; empty: unknown
  std::span<const double> magnitudes;       // of the terms of each element's sum; empty: |want|
  int64_t row_width = 1;                    // number of elements in a row, which share their errors
  double samples = 1;                       // number of independent errors: usually the number of rows
  bool same_non_finite = true;              // NaN and infinities must be where `want` has them
};

// An error, that of eager maths, and the limit.
struct Measure {
  double error = 0;
  double eager = 0;
  double limit = 0;

  bool ok() const { return error <= limit; }
  double ratio() const;  // error / limit
};

struct Judgement {
  std::string tensor;
  Measure mean;
  Measure largest;
  Measure row;  // mean error of the row that is nearest to its limit or furthest beyond it
  bool ok = true;
  std::string reason;  // why it failed, with the place

  double ratio() const;  // the largest of the three
};

// With chance = 3 / sqrt(n), since two means of n errors of one distribution differ by more than 3 / sqrt(n) of their
// size less than once in a thousand. n is `samples`, but not more than the rows in which either result has an error: a
// row that both have exactly, as one without keys, adds no sample to the means.
// Eager's error of an element is at least its deviation, where that is known.
//   mean     at most (1.1 + chance) x eager's, and what the dtype's rounding does to the mean of few elements
//   largest  at most (3 + chance) x eager's largest, and a unit in the last place of the largest value
//   row      at most (3 + chance) x eager's worst row, and a unit in the last place of the row's own largest value. The
//            rows that count for eager's are those of up to twice the size, at least half of them: the short rows of a
//            causal mask have large values with large errors, in which a long row of zeros would go unseen
// NaN and infinities must be where the oracle has them, except in a sum whose terms are together beyond f32's range: in
// some orders of addition, its partial sums are infinite although the sum is not.
// Each allows a few f32 roundings of the terms besides, since sums may cancel, in eager maths too; and 64 times the
// smallest normal f32, which processors' bf16 products flush to zero.
Judgement judge(const Subject& subject);

}  // namespace flashlift::problem
