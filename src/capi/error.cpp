#include "capi/error.h"

#include <new>
#include <string>

#include "support/printable.h"

struct FlashliftError {
  FlashliftErrorCode code;
  std::string message;
};

namespace flashlift::capi {
namespace {

FlashliftErrorCode to_code(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return FLASHLIFT_INVALID_ARGUMENT;
    case ErrorKind::kUnsupported:
      return FLASHLIFT_UNSUPPORTED;
    case ErrorKind::kNotFound:
      return FLASHLIFT_NOT_FOUND;
    case ErrorKind::kInternal:
      return FLASHLIFT_INTERNAL;
    case ErrorKind::kCancelled:
      return FLASHLIFT_CANCELLED;
  }
  return FLASHLIFT_INTERNAL;
}

// Used if there is no memory left for an error. Its message is so short that it needs no allocation. Made when the
// library is loaded: with a static object of a function, a child by fork() might wait for the thread that makes it.
FlashliftError make_out_of_memory() noexcept { return {FLASHLIFT_INTERNAL, "out of memory"}; }
FlashliftError out_of_memory = make_out_of_memory();

}  // namespace

FlashliftError* make_error(const Error& error) {
  try {
    return new FlashliftError{to_code(error.kind), to_utf8(error.message)};
  } catch (const std::bad_alloc&) {
    return &out_of_memory;
  }
}

}  // namespace flashlift::capi

extern "C" {

const char* flashlift_error_message(const FlashliftError* error) {
  return error == nullptr ? "" : error->message.c_str();
}

FlashliftErrorCode flashlift_error_code(const FlashliftError* error) {
  return error == nullptr ? FLASHLIFT_INTERNAL : error->code;
}

void flashlift_error_destroy(FlashliftError* error) {
  if (error != &flashlift::capi::out_of_memory) {
    delete error;
  }
}

}  // extern "C"
