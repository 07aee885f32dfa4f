// Creates errors, with fmt's formatting: return invalid_argument("expected {} dimensions, got {}", want, got);
#pragma once

#include <fmt/format.h>

#include "flashlift/result.h"

namespace flashlift {

template <typename... Args>
Error invalid_argument(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
Error unsupported(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kUnsupported, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
Error not_found(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kNotFound, fmt::format(format, std::forward<Args>(args)...)};
}

template <typename... Args>
Error internal_error(fmt::format_string<Args...> format, Args&&... args) {
  return {ErrorKind::kInternal, fmt::format(format, std::forward<Args>(args)...)};
}

inline Error cancelled() { return {ErrorKind::kCancelled, "the caller cancelled the call; its outputs hold anything"}; }

}  // namespace flashlift
