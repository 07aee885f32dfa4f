// Functions of lists.
#pragma once

#include <algorithm>
#include <vector>

namespace flashlift::stablehlo {

template <typename T>
void append(std::vector<T>& to, const std::vector<T>& from) {
  to.insert(to.end(), from.begin(), from.end());
}

template <typename T>
std::vector<T> sorted(std::vector<T> values) {
  std::sort(values.begin(), values.end());
  return values;
}

}  // namespace flashlift::stablehlo
