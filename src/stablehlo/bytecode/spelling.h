// StableHLO's attributes as text, in addition to those of reader/attributes.h.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace flashlift::stablehlo::bytecode {

struct ConvDims {
  int64_t input_batch = 0, input_feature = 0;
  std::vector<int64_t> input_spatial;
  int64_t kernel_input = 0, kernel_output = 0;
  std::vector<int64_t> kernel_spatial;
  int64_t output_batch = 0, output_feature = 0;
  std::vector<int64_t> output_spatial;
};

struct ScatterDims {
  std::vector<int64_t> update_window, inserted_window, input_batching, indices_batching, scatter_to_operand;
  int64_t index_vector_dim = 0;
};

struct DotAlgorithm {
  std::string lhs, rhs, accumulation;  // types
  int64_t lhs_components = 1, rhs_components = 1, operations = 1;
  bool is_imprecise = false;
};

// Empty for numbers that do not name each dimension exactly once.
std::string spell_conv(const ConvDims& dims);
std::string spell_scatter(const ScatterDims& dims);
std::string spell_algorithm(const DotAlgorithm& algorithm);

// The inverse functions. Nothing for any other text.
using Fields = std::vector<std::pair<std::string_view, std::string_view>>;
// "mnemonic<name = value, ...>"
std::optional<Fields> parse_fields(std::string_view text, std::string_view mnemonic);
// Empty if there is no field of this name.
std::string_view find_field(const Fields& fields, std::string_view name);
// "[1, 2]"; empty text is an empty list.
std::optional<std::vector<int64_t>> parse_list(std::string_view text);
std::optional<int64_t> parse_number(std::string_view text);
std::optional<ConvDims> parse_conv(std::string_view text);
std::optional<ScatterDims> parse_scatter(std::string_view text);
std::optional<DotAlgorithm> parse_algorithm(std::string_view text);

}  // namespace flashlift::stablehlo::bytecode
