// Objects that are never destroyed.
#pragma once

#include <utility>

namespace flashlift {

// A copy of `value` that nobody frees, for static objects: while the process exits and destroys those, other threads
// may still compile.
template <typename T>
T& forever(T value) {
  return *new T(std::move(value));
}

}  // namespace flashlift
