// Errors of the C interface.
#pragma once

#include <pthread.h>

#include <cstring>
#include <exception>

#include "flashlift/flashlift.h"
#include "flashlift/result.h"
#include "support/error.h"

namespace flashlift::capi {

FlashliftError* make_error(const Error& error);

// No version of any structure is larger: a larger size means that struct_size was not set.
inline constexpr size_t kLargestStruct = 4096;

// The size of the part of a caller's structure that both sides have, since the caller may be older or newer than the
// library. Fails if struct_size was not set, or ends inside a field, half of which would be read as a pointer.
template <typename T>
Result<size_t> known_size(const T& given, const char* name) {
  const size_t size = given.struct_size;
  if (size < sizeof(size_t) || size > kLargestStruct || size % alignof(T) != 0) {
    return invalid_argument("{}::struct_size is {}: set it to sizeof({})", name, size, name);
  }
  return size < sizeof(T) ? size : sizeof(T);
}

// Copies the fields of the caller's version of the structure, and clears the others.
template <typename T>
Status read_struct(const T* given, const char* name, T& result) {
  std::memset(static_cast<void*>(&result), 0, sizeof(T));  // not T{}: DLDeviceType has no value of zero
  if (given != nullptr) {
    FLASHLIFT_ASSIGN_OR_RETURN(const size_t known, known_size(*given, name));
    std::memcpy(static_cast<void*>(&result), given, known);
  }
  return {};
}

// As long as this object exists, pthread_cancel() does not end the thread, which it otherwise does by an exception from
// any function that may wait, such as open().
class Uncancelled {
 public:
  Uncancelled() { pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before_); }
  ~Uncancelled() { pthread_setcancelstate(before_, nullptr); }
  Uncancelled(const Uncancelled&) = delete;
  Uncancelled& operator=(const Uncancelled&) = delete;

 private:
  int before_ = PTHREAD_CANCEL_ENABLE;
};

// Runs the body of a C function: a Status becomes its return value, and no exception (usually that memory ran out)
// leaves the function.
template <typename F>
FlashliftError* guarded(F&& body) noexcept {
  const Uncancelled uncancelled;
  try {
    const Status status = body();
    return status.ok() ? nullptr : make_error(status.error());
  } catch (const std::exception& exception) {
    return make_error({ErrorKind::kInternal, exception.what()});
  } catch (...) {  // from a caller's executor
    return make_error({ErrorKind::kInternal, "an exception of an unknown type was thrown"});
  }
}

}  // namespace flashlift::capi
