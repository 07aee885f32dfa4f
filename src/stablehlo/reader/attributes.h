// StableHLO's own attributes, which the reader keeps as text. Uses no MLIR.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashlift::stablehlo {

struct DotDims {
  std::vector<int64_t> lhs_batch;
  std::vector<int64_t> rhs_batch;
  std::vector<int64_t> lhs_contract;
  std::vector<int64_t> rhs_contract;
};

struct GatherDims {
  std::vector<int64_t> offset_dims;
  std::vector<int64_t> collapsed_slice_dims;
  std::vector<int64_t> operand_batching_dims;
  std::vector<int64_t> start_indices_batching_dims;
  std::vector<int64_t> start_index_map;
  int64_t index_vector_dim = 0;
};

// The text after "#stablehlo." (or "#stablehlo<") in a canonical form: single spaces, and dimension numbers in
// StableHLO's order without empty lists, as StableHLO itself prints them. Two attributes are equal exactly if their
// canonical texts are equal. Nothing if it has a comment that contains a bracket.
std::optional<std::string> canonical_attribute(std::string_view text);

// "dot<lhs_contracting_dimensions = [1], ...>"; nothing for any other text.
std::optional<DotDims> parse_dot(std::string_view text);
std::string print_dot(const DotDims& dims);
// "gather<offset_dims = [1], ...>"; nothing for any other text.
std::optional<GatherDims> parse_gather(std::string_view text);
std::string print_gather(const GatherDims& dims);
// "precision DEFAULT" with mnemonic "precision" gives "DEFAULT"; nothing for any other text.
std::optional<std::string_view> parse_enum(std::string_view text, std::string_view mnemonic);

}  // namespace flashlift::stablehlo
