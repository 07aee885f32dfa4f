// SQLite, loaded at its first use: most processes never tune, and packages need not contain it. Its functions are
// declared here by hand; SQLite guarantees not to change them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "flashlift/result.h"

namespace flashlift::database {

using Value = std::variant<int64_t, double, std::string>;

// The values of one row of a result.
class Row {
 public:
  explicit Row(void* statement) : statement_(statement) {}
  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;

 private:
  void* statement_;
};

// The kind of error of a failed statement.
enum class Fault : uint8_t { kNone, kCorrupt, kOther };

class Connection {
 public:
  enum class Access : uint8_t { kRead, kWrite };

  // Errors: kNotFound without SQLite or the file; SQLite's errors. kWrite creates the file.
  static Result<Connection> open(const std::filesystem::path& file, Access access);
  Connection(Connection&&) noexcept = default;
  Connection& operator=(Connection&&) noexcept = default;

  // Runs one statement, with a value for each `?`, and returns its result row by row. Rows of more than 4 MiB are
  // errors.
  Status run(const std::string& sql, const std::vector<Value>& values = {},
             const std::function<void(const Row&)>& on_row = {});
  // Whether the last error was a file that is not a database, or is damaged.
  Fault fault() const { return fault_; }

 private:
  struct Close {
    void operator()(void* database) const;
  };

  Connection(void* database, std::filesystem::path file) : database_(database), file_(std::move(file)) {}
  Error failure(int code);

  std::unique_ptr<void, Close> database_;
  std::filesystem::path file_;
  Fault fault_ = Fault::kNone;
};

}  // namespace flashlift::database
