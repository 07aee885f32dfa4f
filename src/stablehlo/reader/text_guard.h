// Processing of a module's text before and after MLIR parses it. Uses no MLIR.
#pragma once

#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::stablehlo {

inline constexpr size_t kMaxModuleText = (size_t{1} << 31) - 1;  // some of MLIR's positions have 32 bits

// Refuses text that MLIR's parser must not read: bytecode, too much text, and text that measure_text() refuses.
Status check_module_text(std::string_view text, std::string_view name);

// Packs constants of i1 in hexadecimal: MLIR 22 requires packed bits, newer versions (JAX's) write one byte for each
// element, or one byte for all elements. The packed text is padded with spaces to the same length, so that positions in
// messages stay right. Returns whether there was any such constant; only then `text` is copied to `storage`.
bool pack_bool_constants(std::string_view text, std::string& storage);

// The inverse, for text that MLIR 22 printed: converts i1 constants in hexadecimal to lists of true and false, which
// every version reads.
std::string spell_bool_constants(std::string text);

}  // namespace flashlift::stablehlo
