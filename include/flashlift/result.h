// Errors as values: every fallible function of Flashlift returns a Result<T>.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

// The kind of an error, which determines the exit code or the exception type in a front end.
enum class ErrorKind {
  kInvalidArgument,  // the caller's input is wrong: a shape, a dtype, a malformed text
  kUnsupported,      // the input is right, but this implementation cannot do it
  kNotFound,         // a file, a device, a library is missing
  kInternal,         // a defect of Flashlift, or memory ran out
  kCancelled,        // the caller cancelled the call
};

const char* to_string(ErrorKind kind);

// A message says what was expected, what came, and what to do.
struct Error {
  ErrorKind kind = ErrorKind::kInternal;
  std::string message;
};

// Success, or the error.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}

  bool ok() const { return !error_.has_value(); }
  explicit operator bool() const { return ok(); }
  const Error& error() const { return *error_; }

 private:
  std::optional<Error> error_;
};

// A value, or the error. Reading the value of a failed Result is a defect of the caller.
template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : state_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return state_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Error& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Error> state_;
};

}  // namespace flashlift

#pragma GCC visibility pop

#define FLASHLIFT_CONCAT_IMPL_(a, b) a##b
#define FLASHLIFT_CONCAT_(a, b) FLASHLIFT_CONCAT_IMPL_(a, b)

// Returns the error of a Status from the enclosing function, if there is one.
#define FLASHLIFT_RETURN_IF_ERROR(expr)         \
  do {                                          \
    if (auto status_ = (expr); !status_.ok()) { \
      return status_.error();                   \
    }                                           \
  } while (false)

// FLASHLIFT_ASSIGN_OR_RETURN(auto x, f()): x is f()'s value, or the enclosing function returns f()'s error.
#define FLASHLIFT_ASSIGN_OR_RETURN(lhs, expr) \
  FLASHLIFT_ASSIGN_OR_RETURN_IMPL_(FLASHLIFT_CONCAT_(result_, __LINE__), lhs, expr)
#define FLASHLIFT_ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                                     \
  if (!tmp.ok()) {                                       \
    return tmp.error();                                  \
  }                                                      \
  lhs = *std::move(tmp)
