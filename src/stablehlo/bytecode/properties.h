// In which order MLIR's bytecode has the own attributes of operations that are not VHLO's. No MLIR here.
#pragma once

#include <span>
#include <string_view>

namespace flashlift::stablehlo::bytecode {

struct Property {
  std::string_view name;
  bool is_optional = false;
  bool is_late = false;  // files of earlier versions do not have it at all
};

// Of "stablehlo.add", "func.func", ... Nothing is known of other operations: `is_known` says so.
std::span<const Property> properties_of(std::string_view operation, bool& is_known);

}  // namespace flashlift::stablehlo::bytecode
