// The order of own attributes in MLIR's bytecode, for operations of other dialects than VHLO. Uses no MLIR.
#pragma once

#include <span>
#include <string_view>

namespace flashlift::stablehlo::bytecode {

struct Property {
  std::string_view name;
  bool is_optional = false;
  bool is_late = false;  // files of earlier versions lack it
};

// The properties of an operation such as "stablehlo.add" or "func.func". `is_known` is false for an operation whose
// properties are unknown.
std::span<const Property> properties_of(std::string_view operation, bool& is_known);

}  // namespace flashlift::stablehlo::bytecode
