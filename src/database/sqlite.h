// SQLite, loaded when it is first needed: most processes never tune, and a package need not carry it. Its entry points
// are declared here by hand; SQLite promises never to change them.
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

// Of one row of a result.
class Row {
 public:
  explicit Row(void* statement) : statement_(statement) {}
  int64_t integer(int column) const;
  double real(int column) const;
  std::string text(int column) const;

 private:
  void* statement_;
};

// Whose fault a failed statement is.
enum class Fault : uint8_t { kNone, kCorrupt, kOther };

class Connection {
 public:
  enum class Access : uint8_t { kRead, kWrite };

  // Errors: kNotFound without SQLite or the file; what SQLite says. A file is made for kWrite.
  static Result<Connection> open(const std::filesystem::path& file, Access access);
  Connection(Connection&&) noexcept = default;
  Connection& operator=(Connection&&) noexcept = default;

  // One statement, with a value for each `?`, and what it gives, row by row. Rows of more than 4 MiB are errors.
  Status run(const std::string& sql, const std::vector<Value>& values = {},
             const std::function<void(const Row&)>& on_row = {});
  // Whether the last error was a file that is no database, or a torn one.
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
