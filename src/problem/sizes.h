// The words of the problem text that are a name and its number: b2, hq32.
#pragma once

#include <span>

#include "flashlift/problem.h"

namespace flashlift::problem {

// Of head_dim and value_dim: kernels hold whole rows.
inline constexpr int64_t kMostDepth = 256;

// One word for a size, or one for two sizes that are equal and one for each of them.
struct Size {
  const char* name;
  const char* first = nullptr;  // none: `name` is the only one, and may be left out
  const char* second = nullptr;
  int64_t Problem::* of_first;
  int64_t Problem::* of_second = nullptr;
  const char* examples;  // `name`'s, and behind a space those of the others
  const char* doc;       // the meaning, in Markdown
  const char* without = "required";
};

std::span<const Size> sizes();

}  // namespace flashlift::problem
