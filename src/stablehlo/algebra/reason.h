// The reason why something is not lifted: a row of reasons.def, on which code may branch, and its text for the report.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "flashlift/result.h"

namespace flashlift::stablehlo {

enum class Reason : uint8_t {
#define FLASHLIFT_REASON(name, text) name,
#include "stablehlo/algebra/reasons.def"
};

inline constexpr std::string_view kReasonTexts[] = {
#define FLASHLIFT_REASON(name, text) text,
#include "stablehlo/algebra/reasons.def"
};
constexpr std::string_view text_of(Reason reason) { return kReasonTexts[static_cast<size_t>(reason)]; }

struct Refusal {
  Reason reason = Reason::kNoCandidate;
  std::string text;  // the row's text, with its {} filled in
};

// refuse<Reason::kSinkPieces>(3). It does not compile if the {} of the row's text do not match the arguments.
template <Reason kReason, typename... Args>
Refusal refuse(Args&&... args) {
  return {kReason, fmt::format(fmt::format_string<Args...>(text_of(kReason)), std::forward<Args>(args)...)};
}
// Flashlift's own checks refuse the call.
inline Refusal refusal_of(const Error& error) { return refuse<Reason::kInvalidProblem>(error.message); }

// Success, or a refusal. FLASHLIFT_RETURN_IF_ERROR and FLASHLIFT_ASSIGN_OR_RETURN work with this and with Outcome.
class [[nodiscard]] Proof {
 public:
  Proof() = default;
  Proof(Refusal refusal) : refusal_(std::move(refusal)) {}
  Proof(const Error& error) : refusal_(refusal_of(error)) {}

  bool ok() const { return !refusal_.has_value(); }
  const Refusal& error() const { return *refusal_; }

 private:
  std::optional<Refusal> refusal_;
};

// A value, or a refusal.
template <typename T>
class [[nodiscard]] Outcome {
 public:
  Outcome(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Outcome(Refusal refusal) : state_(std::in_place_index<1>, std::move(refusal)) {}
  Outcome(const Error& error) : state_(std::in_place_index<1>, refusal_of(error)) {}

  bool ok() const { return state_.index() == 0; }
  T& operator*() & { return std::get<0>(state_); }
  const T& operator*() const& { return std::get<0>(state_); }
  T&& operator*() && { return std::get<0>(std::move(state_)); }
  T* operator->() { return &std::get<0>(state_); }
  const T* operator->() const { return &std::get<0>(state_); }
  const Refusal& error() const { return std::get<1>(state_); }

 private:
  std::variant<T, Refusal> state_;
};

}  // namespace flashlift::stablehlo
