// What subcommands print: errors and tables for people, JSON for programs.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"

namespace flashlift::cli {

// Keeps keys in the order in which they were added, which is that of the documentation.
using Json = nlohmann::ordered_json;

void print_error(const Error& error);
void print_error(std::string_view message);

// Prints one object on standard output. Replaces bytes that are not UTF-8, for example in a file name.
void print_json(const Json& object);

// "0 B", "12.5 KiB", "3.0 GiB"
std::string format_bytes(int64_t bytes);

// Rows of cells with aligned columns: names to the left, numbers to the right.
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
