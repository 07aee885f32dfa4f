// The words for TuningPolicy in all interfaces. The C interface uses the enumerators' numbers.
#pragma once

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "flashlift/tuning.h"

namespace flashlift {

inline constexpr std::array<std::pair<std::string_view, TuningPolicy>, 3> kTuningPolicies = {{
    {"off", TuningPolicy::kOff},
    {"read", TuningPolicy::kRead},
    {"write", TuningPolicy::kWrite},
}};

// Nothing for any other word.
constexpr std::optional<TuningPolicy> tuning_policy_of(std::string_view word) {
  for (const auto& [name, policy] : kTuningPolicies) {
    if (name == word) {
      return policy;
    }
  }
  return std::nullopt;
}

// Not for kFromEnvironment.
constexpr std::string_view word_of(TuningPolicy policy) {
  for (const auto& [name, other] : kTuningPolicies) {
    if (other == policy) {
      return name;
    }
  }
  return {};
}

}  // namespace flashlift
