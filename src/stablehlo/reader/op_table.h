// The table of stablehlo's and chlo's operations. Uses no MLIR.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace flashlift::stablehlo {

enum class OpKind : uint8_t {
  kOther,  // an operation of another dialect, or one that is newer than the table
#define FLASHLIFT_HLO_OP(kind, name, effects, operands, syntax, attributes) kind,
#include "stablehlo/reader/ops.def"
};

enum class Effects : uint8_t {
  kPure,        // may be removed if unused, duplicated and moved
  kNested,      // pure if all operations in its regions are
  kEffects,     // must not be removed
  kTerminator,  // ends a region
};

struct OpInfo {
  OpKind kind = OpKind::kOther;
  std::string_view name;  // with its dialect: "stablehlo.add"
  Effects effects = Effects::kEffects;
  int operands = -1;                         // -1: any number
  const char* syntax = "";                   // of the pretty form, see syntax.h; "" if there is none
  std::vector<std::string_view> attributes;  // its own, sorted
};

// Null for an unknown name.
const OpInfo* find_op(std::string_view name);
const OpInfo& info(OpKind kind);
std::span<const OpInfo> all_ops();

}  // namespace flashlift::stablehlo
