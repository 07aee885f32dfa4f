// Reads modules from bytes: MLIR bytecode of StableHLO and of VHLO (StableHLO's portable artifacts, versions 0.9 to
// 1.20), or text.
#pragma once

#include <string_view>

#include "flashlift/result.h"
#include "stablehlo/bytecode/vhlo.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

enum class Encoding : uint8_t {
  kText,
  kBytecode,  // MLIR bytecode of StableHLO itself
  kVhlo,      // a portable artifact
};

// The format in which a module was given, or is to be written.
struct Format {
  Encoding encoding = Encoding::kText;
  bytecode::Version version = bytecode::kNewest;  // of StableHLO, for kVhlo

  bool operator==(const Format&) const = default;
};

// The format, from the first bytes: the magic number of MLIR bytecode and its producer. Anything else is text.
Format format_of(std::string_view bytes);

// Errors: kInvalidArgument for an invalid module, with the byte for bytecode and line and column for text; kUnsupported
// for a valid module that cannot be read.
Result<Module> read_module(std::string_view bytes, std::string_view name = "<module>");

}  // namespace flashlift::stablehlo
