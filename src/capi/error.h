// Errors on their way through the C interface.
#pragma once

#include <cstring>
#include <exception>

#include "flashlift/flashlift.h"
#include "flashlift/result.h"
#include "support/error.h"

namespace flashlift::capi {

FlashliftError* make_error(const Error& error);

// No structure of any version is larger: a size beyond it was never set.
inline constexpr size_t kLargestStruct = 4096;

// How much of a caller's structure both sides know: the caller may be older or newer than the library.
// Errors: a struct_size that was not set, or that ends inside of a field, half of which would be read as a pointer.
template <typename T>
Result<size_t> known_size(const T& given, const char* name) {
  const size_t size = given.struct_size;
  if (size < sizeof(size_t) || size > kLargestStruct || size % alignof(T) != 0) {
    return invalid_argument("{}::struct_size is {}: set it to sizeof({})", name, size, name);
  }
  return size < sizeof(T) ? size : sizeof(T);
}

// The caller's fields, as many as the caller's version of the structure has, and zero for the rest.
template <typename T>
Status read_struct(const T* given, const char* name, T& result) {
  std::memset(static_cast<void*>(&result), 0, sizeof(T));  // not T{}: DLDeviceType has no value of zero
  if (given != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(const size_t known, known_size(*given, name));
    std::memcpy(static_cast<void*>(&result), given, known);
  }
  return {};
}

// Runs what stands behind a C function: a Status becomes its return value, and no exception (memory that ran out, as a
// rule) leaves through C.
template <typename F>
FlashliftError* guarded(F&& body) noexcept {
  try {
    const Status status = body();
    return status.ok() ? nullptr : make_error(status.error());
  } catch (const std::exception& exception) {
    return make_error({ErrorKind::kInternal, exception.what()});
  } catch (...) {  // of a caller's executor
    return make_error({ErrorKind::kInternal, "an exception of an unknown type was thrown"});
  }
}

}  // namespace flashlift::capi
