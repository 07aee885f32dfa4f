// flashlift.h: the text of problems.
#include <memory>
#include <string>

#include "capi/error.h"
#include "flashlift/problem.h"
#include "problem/problem_text.h"
#include "problem/word_texts.h"
#include "support/error.h"
#include "support/lazy.h"

struct FlashliftProblem {
  std::string json;
};

namespace flashlift::capi {
namespace {

Status read(const char* text, FlashliftProblem** result) {
  if (text == nullptr || result == nullptr) {
    return invalid_argument("flashlift_problem_read: text and problem must not be NULL");
  }
  *result = nullptr;
  FLASHLIFT_ASSIGN_OR_RETURN(const problem::ProblemText read, problem::read_text(text));
  *result = std::make_unique<FlashliftProblem>(FlashliftProblem{problem::as_json(read)}).release();
  return {};
}

Status expand(const char* text, FlashliftProblem** result) {
  if (text == nullptr || result == nullptr) {
    return invalid_argument("flashlift_problem_expand: text and problem must not be NULL");
  }
  *result = nullptr;
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(text));
  return read(print(problem).c_str(), result);
}

}  // namespace
}  // namespace flashlift::capi

extern "C" {

const char* flashlift_problem_words(void) {
  static constinit flashlift::Lazy<const std::string> text;
  return text.get(flashlift::problem::words_as_json).c_str();
}

FlashliftError* flashlift_problem_read(const char* text, FlashliftProblem** problem) {
  return flashlift::capi::guarded([&] { return flashlift::capi::read(text, problem); });
}

FlashliftError* flashlift_problem_expand(const char* text, FlashliftProblem** problem) {
  return flashlift::capi::guarded([&] { return flashlift::capi::expand(text, problem); });
}

void flashlift_problem_destroy(FlashliftProblem* problem) { delete problem; }

const char* flashlift_problem_json(const FlashliftProblem* problem) {
  return problem == nullptr ? "" : problem->json.c_str();
}

}  // extern "C"
