// What the subcommands print: errors for people, tables for people, JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"

namespace flashlift::cli {

// Keys stay in the order in which they were added, the order of the documentation.
using Json = nlohmann::ordered_json;

void print_error(const Error& error);
void print_error(std::string_view message);

// One object on standard output. Text that is not UTF-8 (a file name, say) is printed with its bad bytes replaced.
void print_json(const Json& object);

// "0 B", "12.5 KiB", "3.0 GiB"
std::string format_bytes(int64_t bytes);

// Rows of cells with the columns aligned: names to the left, numbers to the right.
class Table {
 public:
  explicit Table(std::vector<std::string> header) : header_(std::move(header)) {}
  void add(std::vector<std::string> row);
  std::string text() const;

 private:
  std::vector<std::string> header_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace flashlift::cli
