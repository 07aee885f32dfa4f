#include "flashlift/result.h"

namespace flashlift {

const char* to_string(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::kInvalidArgument:
      return "invalid argument";
    case ErrorKind::kUnsupported:
      return "unsupported";
    case ErrorKind::kNotFound:
      return "not found";
    case ErrorKind::kInternal:
      return "internal error";
    case ErrorKind::kCancelled:
      return "cancelled";
  }
  return "unknown error";
}

}  // namespace flashlift
