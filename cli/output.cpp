#include "cli/output.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <utility>

#include "support/printable.h"

namespace flashlift::cli {
namespace {

bool is_number(const std::string& cell) {
  return !cell.empty() && (std::isdigit(static_cast<unsigned char>(cell[0])) != 0 || cell[0] == '-' || cell[0] == '.');
}

}  // namespace

void print_error(const Error& error) {
  if (error.kind == ErrorKind::kInternal) {
    print_error(error.message +
                "\nUnless memory or threads ran out, this is a defect of Flashlift; please report it with the command "
                "that showed it.");
  } else {
    print_error(error.message);
  }
}

void print_error(std::string_view message) {
  // Not fmt::print, which throws if standard error is closed.
  std::fputs(fmt::format("error: {}\n", printable(message)).c_str(), stderr);
}

void print_json(const Json& object) { fmt::print("{}\n", object.dump(2, ' ', false, Json::error_handler_t::replace)); }

std::string format_bytes(int64_t bytes) {
  if (bytes < 1024) {
    return fmt::format("{} B", bytes);
  }
  double amount = static_cast<double>(bytes);
  const char* unit = "B";
  for (const char* larger : {"KiB", "MiB", "GiB", "TiB"}) {
    if (amount < 1024) {
      break;
    }
    amount /= 1024;
    unit = larger;
  }
  return fmt::format("{:.1f} {}", amount, unit);
}

void Table::add(std::vector<std::string> row) {
  for (std::string& cell : row) {
    cell = printable_line(cell);  // imported tuning results may contain any text
  }
  rows_.push_back(std::move(row));
}

std::string Table::text() const {
  std::vector<size_t> widths(header_.size());
  std::vector<bool> to_the_right(header_.size(), !rows_.empty());
  for (size_t column = 0; column < header_.size(); ++column) {
    widths[column] = header_[column].size();
    for (const auto& row : rows_) {
      widths[column] = std::max(widths[column], row[column].size());
      to_the_right[column] = to_the_right[column] && is_number(row[column]);
    }
  }
  const auto line = [&](const std::vector<std::string>& row) {
    std::string text;
    for (size_t column = 0; column < row.size(); ++column) {
      const std::string_view gap = column == 0 ? "" : "  ";
      text += to_the_right[column] ? fmt::format("{}{:>{}}", gap, row[column], widths[column])
                                   : fmt::format("{}{:<{}}", gap, row[column], widths[column]);
    }
    text.erase(text.find_last_not_of(' ') + 1);
    return text + "\n";
  };
  std::string text = line(header_);
  for (const auto& row : rows_) {
    text += line(row);
  }
  return text;
}

}  // namespace flashlift::cli
