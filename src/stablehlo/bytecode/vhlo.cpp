#include "stablehlo/bytecode/vhlo.h"

#include <fmt/format.h>

#include <charconv>
#include <unordered_map>
#include <utility>

#include "support/lazy.h"

namespace flashlift::stablehlo::bytecode {
namespace {

AttributeKind parse_kind(std::string_view text) {
  static constexpr std::pair<std::string_view, AttributeKind> kKinds[] = {
      {"dims", AttributeKind::kDims},     {"flags", AttributeKind::kFlags},
      {"symbol", AttributeKind::kSymbol}, {"symbols", AttributeKind::kSymbols},
      {"unit", AttributeKind::kUnit},     {"api", AttributeKind::kApi},
      {"dot", AttributeKind::kDot},       {"algorithm", AttributeKind::kAlgorithm},
      {"gather", AttributeKind::kGather}, {"scatter", AttributeKind::kScatter},
      {"conv", AttributeKind::kConv},     {"channel", AttributeKind::kChannel},
  };
  for (const auto& [name, kind] : kKinds) {
    if (name == text) {
      return kind;
    }
  }
  return AttributeKind::kSame;
}

// "name:kind=default"
VhloAttribute parse_attribute(std::string_view word) {
  VhloAttribute attribute;
  if (const size_t equal = word.find('='); equal != std::string_view::npos) {
    attribute.default_value = word.substr(equal + 1);
    word = word.substr(0, equal);
  }
  if (const size_t colon = word.find(':'); colon != std::string_view::npos) {
    attribute.kind = parse_kind(word.substr(colon + 1));
    word = word.substr(0, colon);
  }
  attribute.name = word;
  return attribute;
}

std::vector<VhloAttribute> parse_attributes(std::string_view text) {
  std::vector<VhloAttribute> attributes;
  while (!text.empty()) {
    const size_t size = std::min(text.find(' '), text.size());
    attributes.push_back(parse_attribute(text.substr(0, size)));
    text.remove_prefix(std::min(size + 1, text.size()));
  }
  return attributes;
}

const std::vector<VhloOp>& table() {
  static constinit Lazy<const std::vector<VhloOp>> ops;
  return ops.get([] {
    constexpr auto v = [](int major, int minor, int patch) { return Version{major, minor, patch}; };
    std::vector<VhloOp> made;
#define FLASHLIFT_VHLO_OP(name, version, since, until, attributes) \
  made.push_back({name, version, since, until, parse_attributes(attributes)});
#include "stablehlo/bytecode/vhlo.def"
    return made;
  });
}

}  // namespace

std::optional<Version> parse_version(std::string_view text) {
  Version version;
  for (int* part : {&version.major, &version.minor, &version.patch}) {
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *part);
    if (error != std::errc() || *part < 0) {
      return std::nullopt;
    }
    text.remove_prefix(static_cast<size_t>(end - text.data()));
    if (part != &version.patch) {
      if (!text.starts_with('.')) {
        return std::nullopt;
      }
      text.remove_prefix(1);
    }
  }
  return text.empty() ? std::optional(version) : std::nullopt;
}

std::string print(const Version& version) {
  return fmt::format("{}.{}.{}", version.major, version.minor, version.patch);
}

const VhloOp* find_vhlo_op(std::string_view name) {
  using Map = std::unordered_map<std::string, const VhloOp*>;
  static constinit Lazy<const Map> lazy;
  const Map& by_name = lazy.get([] {
    Map map;
    for (const VhloOp& op : table()) {
      map.emplace(fmt::format("{}_v{}", op.name, op.version), &op);
    }
    return map;
  });
  const auto found = by_name.find(std::string(name));
  return found == by_name.end() ? nullptr : found->second;
}

const VhloOp* find_vhlo_op(std::string_view name, const Version& version) {
  using Map = std::unordered_multimap<std::string_view, const VhloOp*>;
  static constinit Lazy<const Map> lazy;
  const Map& by_name = lazy.get([] {
    Map map;
    for (const VhloOp& op : table()) {
      map.emplace(op.name, &op);
    }
    return map;
  });
  // All patch releases of a version have the same operations.
  const Version release{version.major, version.minor, 0};
  const auto [begin, end] = by_name.equal_range(name);
  for (auto each = begin; each != end; ++each) {
    if (each->second->since <= release && release <= each->second->until) {
      return each->second;
    }
  }
  return nullptr;
}

}  // namespace flashlift::stablehlo::bytecode
