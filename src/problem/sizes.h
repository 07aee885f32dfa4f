// Words of the problem text that consist of a name and its number: b2, hq32.
#pragma once

#include <span>

#include "flashlift/problem.h"

namespace flashlift::problem {

// The limit of head_dim and value_dim, because kernels hold whole rows.
inline constexpr int64_t kMostDepth = 256;

// A word for one size, or words for two sizes: one that sets both, and one for each.
struct Size {
  const char* name;
  const char* first = nullptr;  // none: `name` is the only word, and may be left out
  const char* second = nullptr;
  int64_t Problem::* of_first;
  int64_t Problem::* of_second = nullptr;
  const char* examples;  // those of `name`, and after a space those of the others
  const char* doc;       // the meaning, in Markdown
  const char* without = "required";
};

std::span<const Size> sizes();

}  // namespace flashlift::problem
