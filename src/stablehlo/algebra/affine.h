// Index expressions: integer combinations of index variables ("atoms"), and their transformation by reshapes.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

namespace flashlift::stablehlo {

struct Affine {
  int64_t constant = 0;
  std::vector<std::pair<int, int64_t>> terms;  // (atom, coefficient), atoms ascending, no zero coefficients

  auto operator<=>(const Affine&) const = default;
  bool is_constant() const { return terms.empty(); }
};

Affine affine_atom(int atom);
Affine affine_sum(const Affine& x, const Affine& y);
Affine affine_product(const Affine& x, int64_t factor);

// sizes[atom] is the number of values 0, 1, ... that the atom takes.
struct Range {
  int64_t low = 0;
  int64_t high = 0;  // inclusive
};
Range affine_range(const Affine& x, const std::vector<int64_t>& sizes);

// The atom crosses the boundary between two dimensions: it must be split into two atoms, outer * inner_size + inner.
struct SplitRequest {
  int atom = -1;
  int64_t inner_size = 0;
};

// Splits a row-major offset into one index per dimension. If this needs the split of an atom, it returns this split,
// with atom -1 if no split helps.
struct Delinearized {
  std::optional<std::vector<Affine>> indices;
  SplitRequest request;
};
Delinearized delinearize(const Affine& offset, const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes);

// The row-major offset of these indices.
Affine linearize(const std::vector<Affine>& indices, const std::vector<int64_t>& shape);

// The index as digits: atoms from major to minor, if it takes each of the values 0 ... size - 1 exactly once.
std::optional<std::vector<int>> digits_of(const Affine& index, int64_t size, const std::vector<int64_t>& sizes);

}  // namespace flashlift::stablehlo
