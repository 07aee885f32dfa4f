// Ordered lists of implementations, the preferred one first.
//
// To add an implementation, add its row to a list (cpu_list.cpp, for both directions; cuda_forward_list.cpp,
// cuda_backward_list.cpp). The runtime uses the first row that does not refuse a call, and `explain` shows the answer
// of each row.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "flashlift/attention.h"
#include "flashlift/result.h"
#include "support/error.h"

namespace flashlift::plan {

// The answer of one row of a list for a class of calls.
template <typename Row>
struct Answer {
  const Row* row;
  std::optional<std::string> refusal;  // none: it accepts the calls
};

template <typename Row>
using Answers = std::vector<Answer<Row>>;

// Collects the answers of all rows: refusal(row, by_name) returns the row's reason for refusal, if any. If `requested`
// is not empty, it considers only the row of that name. Errors: kUnsupported if no row has that name; `what` names the
// list in the message.
template <typename Row, typename Refusal>
Result<Answers<Row>> evaluate(std::span<const Row> list, const std::string& requested, const char* what,
                              const Refusal& refusal) {
  Answers<Row> answers;
  std::string names;
  bool found = requested.empty();
  for (const Row& row : list) {
    const bool by_name = requested == row.name();
    found = found || by_name;
    names += (names.empty() ? "" : ", ") + std::string(row.name());
    answers.push_back(
        {&row, requested.empty() || by_name
                   ? refusal(row, by_name)
                   : std::optional(fmt::format("another implementation, {}, was requested by name", requested))});
  }
  if (!found) {
    return unsupported("{} has no implementation named {}: expected one of {}", what, requested, names);
  }
  return answers;
}

// The first row that accepts the calls, or null.
template <typename Row>
const Row* first_of(const Answers<Row>& answers) {
  for (const Answer<Row>& answer : answers) {
    if (!answer.refusal) {
      return answer.row;
    }
  }
  return nullptr;
}

// The answers up to the first row that accepts the calls. describe(row) describes how this row runs them.
template <typename Row, typename Describe>
std::vector<Consideration> considerations(const Answers<Row>& answers, const Describe& describe) {
  std::vector<Consideration> list;
  for (const Answer<Row>& answer : answers) {
    if (!answer.refusal) {
      list.push_back({answer.row->name(), true, describe(*answer.row)});
      break;
    }
    list.push_back({answer.row->name(), false, *answer.refusal});
  }
  return list;
}

// "a: its reason; b: its reason".
inline void add_reason(std::string& reasons, const char* name, const std::string& reason) {
  reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
}
template <typename Row>
std::string reasons_of(const Answers<Row>& answers) {
  std::string reasons;
  for (const Answer<Row>& answer : answers) {
    if (answer.refusal) {
      add_reason(reasons, answer.row->name(), *answer.refusal);
    }
  }
  return reasons;
}

}  // namespace flashlift::plan
