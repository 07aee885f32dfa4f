// The table of VHLO's operations, and versions of StableHLO. Uses no MLIR.
#pragma once

#include <compare>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace flashlift::stablehlo::bytecode {

struct Version {
  int major = 0, minor = 0, patch = 0;

  auto operator<=>(const Version&) const = default;
};
inline constexpr Version kOldest = {0, 9, 0};
inline constexpr Version kNewest = {1, 20, 0};

// "1.9.0"; nothing for any other text.
std::optional<Version> parse_version(std::string_view text);
std::string print(const Version& version);

enum class AttributeKind : uint8_t {
  kSame,
  kDims,
  kFlags,
  kSymbol,
  kSymbols,
  kUnit,
  kApi,
  // Parts of one attribute of StableHLO.
  kDot,
  kAlgorithm,
  kGather,
  kScatter,
  kConv,
  kChannel,
};

struct VhloAttribute {
  std::string_view name;
  AttributeKind kind = AttributeKind::kSame;
  std::string_view default_value;
};

struct VhloOp {
  std::string_view name;  // without its version
  int version = 1;
  Version since, until;
  std::vector<VhloAttribute> attributes;  // in the order of the file
};

// The operation with this name in a file, such as "add_v1". Null if VHLO has none.
const VhloOp* find_vhlo_op(std::string_view name);
// The operation that this version of StableHLO writes for stablehlo.NAME. Null if it has none.
const VhloOp* find_vhlo_op(std::string_view name, const Version& version);

}  // namespace flashlift::stablehlo::bytecode
