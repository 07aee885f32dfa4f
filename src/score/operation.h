// What the table of operations (flashlift/ops.def) says of an operation beyond its types.
#pragma once

#include <algorithm>
#include <initializer_list>
#include <string>

#include "flashlift/program.h"

namespace flashlift::score {

// How an f32 result follows f32 operands that are finite.
enum class Shape : uint8_t {
  kSmooth,      // without a branch or a step, and finite, overflow aside
  kPole,        // without a branch or a step, but infinite or NaN for some
  kSteps,       // with a branch or a step; finite
  kPoleOrStep,  // with either
};
constexpr bool has_pole(Shape shape) { return shape == Shape::kPole || shape == Shape::kPoleOrStep; }
constexpr bool is_smooth(Shape shape) { return shape == Shape::kSmooth || shape == Shape::kPole; }

// Operands over which the value and the slope of a function are moderate: where random programs draw them from.
enum class Domain : uint8_t {
  kNotDrawn,  // random programs have other uses for it
  kAnywhere,
  kPositive,  // from 1/2 on
  kNegative,  // below 0
  kUnit,      // inside (-1, 1)
};

// The operands for which a GPU kernel has the operation over intervals, to find tiles that a mask leaves out.
enum class IntervalForm : uint8_t { kNone, kBooleans, kIntegers, kAllTypes };

struct Operation {
  Shape shape;
  Domain domain;
  int ulps;          // the largest error of the CPU's code, in units of the last place; 0: rounded correctly
  const char* cuda;  // the function that CUDA code calls
  IntervalForm cuda_interval;
  const char* stablehlo;  // the StableHLO (or CHLO) operation that it is; or ""
  const char* aten;       // names of torch functions that it is, separated by spaces
};

const Operation& operation(Op op);

// The table for front ends that are not C++; see flashlift_operations() in flashlift/flashlift.h.
std::string operations_as_json();

// For what concerns a few operations only. A switch over all of them has no default, so that a new one is not
// forgotten.
constexpr bool is_any(Op op, std::initializer_list<Op> list) {
  return std::find(list.begin(), list.end(), op) != list.end();
}

}  // namespace flashlift::score
