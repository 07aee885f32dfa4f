// Measures a module's text before MLIR parses it, since a short text may expand to a very large module.
#pragma once

#include <string_view>

#include "flashlift/result.h"

namespace flashlift::stablehlo {

inline constexpr int kMaxNesting = 256;                      // of brackets of any kind; MLIR's parser recurses
inline constexpr int kMaxAliasNesting = 1000;                // of brackets, after aliases are expanded
inline constexpr size_t kMaxAliasText = size_t{1} << 24;     // of one alias, after the aliases in it are expanded
inline constexpr size_t kMaxAllAliasText = size_t{1} << 28;  // of all uses of aliases, expanded
inline constexpr size_t kMaxAffineText = 4096;               // MLIR recurses over terms, and is quadratic in dimensions
inline constexpr size_t kMaxDimensionsText = 1000;           // x8x8x...: MLIR is quadratic in it
inline constexpr size_t kMaxNumberText = 1000;               // MLIR is quadratic in digits
inline constexpr int kMaxIntegerBits = 128;                  // elements of constants could have up to 2^24 bits

// Errors with their positions: brackets, aliases (#a1 = [#a0, #a0]), affine maps, dimensions, numbers and integer types
// beyond the limits above.
Status measure_text(std::string_view text, std::string_view name);

}  // namespace flashlift::stablehlo
