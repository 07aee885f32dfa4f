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

// What splits one of the dimensions in which attention is the same work for each index.
struct SplitBy {
  char letter;       // as in docs/custom_call.md, but 'q' for the sequence of the queries
  const char* what;  // for people
  std::vector<std::string> axes = {};
  int64_t parts = 1;
};

struct Split {
  std::string mesh;
  std::array<SplitBy, 3> by = {SplitBy{'b', "batches"}, {'h', "heads"}, {'q', "queries"}};

  SplitBy& of(char letter) { return by.at(index_of(letter)); }
  const SplitBy& of(char letter) const { return by.at(index_of(letter)); }
  int64_t parts(char letter) const;  // 1 for letters that nothing splits
  bool is_none() const;

 private:
  static size_t index_of(char letter) { return std::string_view("bhq").find(letter); }
};

// For each captured tensor the letter of each dimension: that of a split dimension where all loads index it by this
// number and by nothing else, so that a device needs its own part only; '1' for all others.
using CaptureDims = std::map<std::string, std::string>;
CaptureDims capture_dims(const Problem& problem, const Split& split);

struct LocalProblem {
  Problem problem;
  // Tensors that its programs read beside the whole problem's: the number of the device's first batch, head or query
  // in the whole, by their letters, [1].
  std::vector<std::pair<char, std::string>> firsts;
};

// The problem of one device's part. Errors: its programs cannot count in the whole.
Result<LocalProblem> local_problem(const Problem& problem, const Split& split);

}  // namespace flashlift::stablehlo
