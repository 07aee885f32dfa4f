#include "stablehlo/bytecode/spelling.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

namespace flashlift::stablehlo::bytecode {
namespace {

// "[b, 0, 1, f]": what stands at each place.
std::string places(std::initializer_list<std::pair<char, int64_t>> named, const std::vector<int64_t>& spatial) {
  std::vector<std::string> words(named.size() + spatial.size());
  bool fits = true;
  const auto put = [&](int64_t at, std::string word) {
    fits = fits && at >= 0 && at < static_cast<int64_t>(words.size()) && words[static_cast<size_t>(at)].empty();
    if (fits) {
      words[static_cast<size_t>(at)] = std::move(word);
    }
  };
  for (const auto& [letter, at] : named) {
    put(at, std::string(1, letter));
  }
  for (size_t i = 0; i < spatial.size(); ++i) {
    put(spatial[i], std::to_string(i));
  }
  return fits ? fmt::format("[{}]", fmt::join(words, ", ")) : std::string();
}

}  // namespace

std::string spell_conv(const ConvDims& dims) {
  const std::string input = places({{'b', dims.input_batch}, {'f', dims.input_feature}}, dims.input_spatial);
  const std::string kernel = places({{'i', dims.kernel_input}, {'o', dims.kernel_output}}, dims.kernel_spatial);
  const std::string output = places({{'b', dims.output_batch}, {'f', dims.output_feature}}, dims.output_spatial);
  return input.empty() || kernel.empty() || output.empty() ? std::string()
                                                           : fmt::format("conv<{}x{}->{}>", input, kernel, output);
}

std::string spell_scatter(const ScatterDims& dims) {
  std::vector<std::string> fields;
  const auto add = [&](std::string_view name, const std::vector<int64_t>& list) {
    if (!list.empty()) {
      fields.push_back(fmt::format("{} = [{}]", name, fmt::join(list, ", ")));
    }
  };
  add("update_window_dims", dims.update_window);
  add("inserted_window_dims", dims.inserted_window);
  add("input_batching_dims", dims.input_batching);
  add("scatter_indices_batching_dims", dims.indices_batching);
  add("scatter_dims_to_operand_dims", dims.scatter_to_operand);
  if (dims.index_vector_dim != 0) {
    fields.push_back(fmt::format("index_vector_dim = {}", dims.index_vector_dim));
  }
  return fmt::format("scatter<{}>", fmt::join(fields, ", "));
}

std::string spell_algorithm(const DotAlgorithm& algorithm) {
  return fmt::format(
      "dot_algorithm<lhs_precision_type = {}, rhs_precision_type = {}, accumulation_type = {}, lhs_component_count = "
      "{}, rhs_component_count = {}, num_primitive_operations = {}, allow_imprecise_accumulation = {}>",
      algorithm.lhs, algorithm.rhs, algorithm.accumulation, algorithm.lhs_components, algorithm.rhs_components,
      algorithm.operations, algorithm.is_imprecise);
}

}  // namespace flashlift::stablehlo::bytecode
