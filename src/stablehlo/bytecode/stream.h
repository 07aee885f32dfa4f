// Reads MLIR bytecode's primitives from untrusted bytes. Uses no MLIR.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "support/error.h"

namespace flashlift::stablehlo::bytecode {

inline constexpr size_t kMaxCount = 4'000'000;  // of entries in a table, of parts in a list, of operations

// The first error in a file. After it, readers return zeros, and loops must check for it.
class Failure {
 public:
  explicit Failure(std::string_view name) : name_(name) {}

  template <typename... Args>
  void invalid(fmt::format_string<Args...> format, Args&&... args) {
    set(ErrorKind::kInvalidArgument, fmt::format(format, std::forward<Args>(args)...));
  }
  template <typename... Args>
  void unsupported(fmt::format_string<Args...> format, Args&&... args) {
    set(ErrorKind::kUnsupported, fmt::format(format, std::forward<Args>(args)...));
  }
  void set(Error error) {
    if (!error_) {
      error_ = std::move(error);
    }
  }
  explicit operator bool() const { return error_.has_value(); }
  const Error& error() const { return *error_; }
  const std::string& name() const { return name_; }

 private:
  void set(ErrorKind kind, std::string message) {
    if (!error_) {
      error_ = Error{kind, name_ + ": " + std::move(message)};
    }
  }

  std::string name_;
  std::optional<Error> error_;
};

// Reads a part of a file from its start.
class ByteReader {
 public:
  // `offset` is the part's position in the file, for messages and alignment.
  ByteReader(std::string_view bytes, size_t offset, Failure& failure)
      : rest_(bytes), offset_(offset), failure_(&failure) {}

  size_t left() const { return *failure_ ? 0 : rest_.size(); }
  bool empty() const { return left() == 0; }
  bool ok() const { return !*failure_; }
  size_t offset() const { return offset_; }
  Failure& failure() const { return *failure_; }

  uint8_t byte();
  uint64_t varint();
  int64_t signed_varint();
  // A number with a flag in its lowest bit.
  uint64_t varint_with_flag(bool& flag);
  // The number of items that take at least one byte each. Refuses more than kMaxCount.
  size_t count();
  std::string_view bytes(uint64_t size);
  std::string_view zero_ended();
  // Skips padding up to a multiple of `alignment` bytes of the file.
  void align(uint64_t alignment);

 private:
  std::string_view rest_;
  size_t offset_;
  Failure* failure_;
};

}  // namespace flashlift::stablehlo::bytecode
