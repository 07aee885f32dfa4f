// What is done to a module's text before and after MLIR sees it. No MLIR here.
#pragma once

#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::stablehlo {

inline constexpr size_t kMaxModuleText = (size_t{1} << 31) - 1;  // MLIR counts positions in 32 bits here and there

// Refuses what MLIR's parser must not see: bytecode, too much text, and what measure_text() refuses.
Status check_module_text(std::string_view text, std::string_view name);

// Constants of i1 in hexadecimal: MLIR 22 wants packed bits, newer versions (JAX's) one byte an element, or one byte
// for all elements. Rewrites these into packed bits of the same length in characters, padded by spaces behind, so that
// all positions in messages stay right. Returns whether there was any; `text` is copied into `storage` only then.
bool pack_bool_constants(std::string_view text, std::string& storage);

// The other way, for text that MLIR 22 printed: i1 constants in hexadecimal become lists of true and false, which every
// version reads.
std::string spell_bool_constants(std::string text);

}  // namespace flashlift::stablehlo
