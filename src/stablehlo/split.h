// How the batches, heads and queries of one attention are split over devices, and the problem of one device's part.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashlift/problem.h"
#include "flashlift/result.h"

namespace flashlift::stablehlo {

// The split of a dimension over which attention is independent.
struct SplitBy {
  char letter;       // as in docs/custom_call.md, and 'q' for the sequence of the queries
  const char* what;  // for people
  std::vector<std::string> axes = {};
  int64_t parts = 1;
};

struct Split {
  std::string mesh;
  std::array<SplitBy, 3> by = {SplitBy{'b', "batches"}, {'h', "heads"}, {'q', "queries"}};

  SplitBy& of(char letter) { return by.at(index_of(letter)); }
  const SplitBy& of(char letter) const { return by.at(index_of(letter)); }
  int64_t parts(char letter) const;  // 1 for letters that are not split
  bool is_none() const;

 private:
  static size_t index_of(char letter) { return std::string_view("bhq").find(letter); }
};

// For each captured tensor, the letter of each dimension. It is the letter of a split dimension if all loads index the
// dimension by this coordinate alone, so that a device needs only its own part; '1' otherwise.
using CaptureDims = std::map<std::string, std::string>;
CaptureDims capture_dims(const Problem& problem, const Split& split);

struct LocalProblem {
  Problem problem;
  // Additional tensors of shape [1] that its programs read, by letter: the number of the device's first batch, head or
  // query in the whole problem.
  std::vector<std::pair<char, std::string>> firsts;
};

// The problem of one device's part. Errors: its programs cannot use the numbers of the whole problem.
Result<LocalProblem> local_problem(const Problem& problem, const Split& split);

}  // namespace flashlift::stablehlo
