// Determines the role of each index variable: batch, head, query.
#pragma once

#include <cstdint>
#include <vector>

#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// Where atoms occur, as input to the choice of letters.
struct AtomUse {
  std::vector<int> q_order;  // atoms of the query tensor without its depth, major to minor
  AtomSet in_q = 0;
  AtomSet in_k = 0;
  AtomSet in_v = 0;
  std::vector<int> plane;   // atoms of the score plane and the output without the key, major to minor
  AtomSet in_programs = 0;  // read by the score or mask formula together with the key
  AtomSet in_sinks = 0;     // the sinks' logits differ along these
  // Dimensions of size 1 that only the first product's query operand has. One of them may be the query; each is said by
  // the atom of the dimension that follows it, -1 if none does.
  std::vector<int> q_ones;
};

// The atoms of each logical dimension, major to minor.
struct Roles {
  std::vector<int> batch;
  std::vector<int> kv_head;
  std::vector<int> group;  // heads that share a key-value head, minor to it
  std::vector<int> query;
  std::vector<int> key = {kKeyAtom};  // several if the keys have several dimensions
  std::vector<int> heads() const;
};

Outcome<Roles> assign_roles(const AtomUse& use, const std::vector<int64_t>& sizes);

// The product of the atoms' sizes.
int64_t extent(const std::vector<int>& atoms, const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
