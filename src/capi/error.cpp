#include "capi/error.h"

#include <algorithm>
#include <new>
#include <string>
#include <string_view>

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

// The length of the well-formed UTF-8 sequence that the text begins with; 0 where it begins with none.
size_t sequence_length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  const size_t length = first < 0x80   ? 1
                        : first < 0xc2 ? 0
                        : first < 0xe0 ? 2
                        : first < 0xf0 ? 3
                        : first < 0xf5 ? 4
                                       : 0;
  if (length > text.size()) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    // The second byte also rules out surrogates, what is beyond Unicode, and longer forms than needed.
    const unsigned char low = i > 1 ? 0x80 : first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    const unsigned char high = i > 1 ? 0xbf : first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (byte(i) < low || byte(i) > high) {
      return 0;
    }
  }
  return length;
}

// Messages quote what callers gave, which need not be UTF-8.
std::string to_utf8(std::string_view text) {
  std::string result;
  while (!text.empty()) {
    const size_t length = sequence_length(text);
    result += length == 0 ? std::string_view("\xef\xbf\xbd") : text.substr(0, length);  // U+FFFD
    text.remove_prefix(std::max<size_t>(1, length));
  }
  return result;
}

// For when there is no memory left even for an error.
FlashliftError& out_of_memory() {
  static FlashliftError error{FLASHLIFT_INTERNAL, "out of memory"};  // short enough to need no allocation
  return error;
}

}  // namespace

FlashliftError* make_error(const Error& error) {
  try {
    return new FlashliftError{to_code(error.kind), to_utf8(error.message)};
  } catch (const std::bad_alloc&) {
    return &out_of_memory();
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
  if (error != &flashlift::capi::out_of_memory()) {
    delete error;
  }
}

}  // extern "C"
