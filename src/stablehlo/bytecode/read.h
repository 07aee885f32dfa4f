// Modules from bytes: MLIR bytecode of StableHLO and of VHLO (StableHLO's portable artifacts, versions 0.9 to 1.20), or
// text.
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

// What a module came as, or is to be written as.
struct Format {
  Encoding encoding = Encoding::kText;
  bytecode::Version version = bytecode::kNewest;  // of StableHLO, for kVhlo

  bool operator==(const Format&) const = default;
};

// By the first bytes: those of MLIR bytecode, and who wrote it. Text for everything else.
Format format_of(std::string_view bytes);

// Errors: kInvalidArgument for what is no valid module, with the byte for bytecode and line and column for text;
// kUnsupported for what is valid and cannot be read.
Result<Module> read_module(std::string_view bytes, std::string_view name = "<module>");

}  // namespace flashlift::stablehlo
