#include "stablehlo/algebra/affine.h"

#include <algorithm>
#include <map>

namespace flashlift::stablehlo {
namespace {

Affine from_map(int64_t constant, const std::map<int, int64_t>& terms) {
  Affine result{.constant = constant, .terms = {}};
  for (const auto& [atom, coefficient] : terms) {
    if (coefficient != 0) {
      result.terms.emplace_back(atom, coefficient);
    }
  }
  return result;
}

}  // namespace

Affine affine_atom(int atom) { return {.constant = 0, .terms = {{atom, 1}}}; }

Affine affine_sum(const Affine& x, const Affine& y) {
  std::map<int, int64_t> terms(x.terms.begin(), x.terms.end());
  for (const auto& [atom, coefficient] : y.terms) {
    terms[atom] += coefficient;
  }
  return from_map(x.constant + y.constant, terms);
}

Affine affine_product(const Affine& x, int64_t factor) {
  Affine result{.constant = x.constant * factor, .terms = {}};
  if (factor != 0) {
    for (const auto& [atom, coefficient] : x.terms) {
      result.terms.emplace_back(atom, coefficient * factor);
    }
  }
  return result;
}

Range affine_range(const Affine& x, const std::vector<int64_t>& sizes) {
  Range range{.low = x.constant, .high = x.constant};
  for (const auto& [atom, coefficient] : x.terms) {
    const int64_t reach = coefficient * (sizes[atom] - 1);
    (reach < 0 ? range.low : range.high) += reach;
  }
  return range;
}

Affine linearize(const std::vector<Affine>& indices, const std::vector<int64_t>& shape) {
  Affine offset;
  int64_t stride = 1;
  for (size_t d = shape.size(); d-- > 0;) {
    offset = affine_sum(offset, affine_product(indices[d], stride));
    stride *= shape[d];
  }
  return offset;
}

Delinearized delinearize(const Affine& offset, const std::vector<int64_t>& shape, const std::vector<int64_t>& sizes) {
  const size_t rank = shape.size();
  std::vector<int64_t> strides(rank, 1);
  for (size_t d = rank; d-- > 1;) {
    strides[d - 1] = strides[d] * shape[d];
  }
  std::vector<Affine> indices(rank);
  for (const auto& [atom, coefficient] : offset.terms) {
    // The major-most dimension whose stride is at most the coefficient. Dimensions of size 1 are skipped.
    size_t d = 0;
    while (d < rank && (shape[d] == 1 || strides[d] > coefficient)) {
      ++d;
    }
    if (d == rank || coefficient % strides[d] != 0) {
      return {};
    }
    const int64_t local = coefficient / strides[d];
    if (local * (sizes[atom] - 1) >= shape[d]) {
      const int64_t inner = shape[d] % local == 0 ? shape[d] / local : 0;
      const bool splits = inner > 1 && sizes[atom] % inner == 0;
      return {.indices = std::nullopt, .request = splits ? SplitRequest{atom, inner} : SplitRequest{}};
    }
    indices[d] = affine_sum(indices[d], affine_product(affine_atom(atom), local));
  }
  int64_t rest = offset.constant;
  if (rest < 0) {
    return {};
  }
  for (size_t d = 0; d < rank; ++d) {
    indices[d].constant = rest / strides[d];
    rest %= strides[d];
    if (affine_range(indices[d], sizes).high >= shape[d]) {
      return {};  // the sum carries into the next dimension
    }
  }
  return {.indices = std::move(indices), .request = {}};
}

std::optional<std::vector<int>> digits_of(const Affine& index, int64_t size, const std::vector<int64_t>& sizes) {
  auto terms = index.terms;
  std::sort(terms.begin(), terms.end(), [](const auto& x, const auto& y) { return x.second > y.second; });
  std::vector<int> digits;
  int64_t expected = size;
  for (const auto& [atom, coefficient] : terms) {
    if (coefficient * sizes[atom] != expected) {
      return std::nullopt;
    }
    expected = coefficient;
    digits.push_back(atom);
  }
  if (index.constant != 0 || expected != 1) {
    return std::nullopt;
  }
  return digits;
}

}  // namespace flashlift::stablehlo
