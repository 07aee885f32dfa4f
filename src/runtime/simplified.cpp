#include "runtime/simplified.h"

#include "score/canonical.h"
#include "score/key_count.h"

namespace flashlift::runtime {
namespace {

std::optional<score::SimplifiedProgram> simplified(std::optional<Program>& program) {
  if (!program) {
    return std::nullopt;
  }
  score::SimplifiedProgram simple(*program);
  if (score::is_identity(*simple)) {
    program.reset();
    return std::nullopt;
  }
  program = *simple;
  return simple;
}

}  // namespace

SimplifiedProblem::SimplifiedProblem(const Problem& problem)
    : problem_(problem), score_mod_(simplified(problem_.score_mod)), mask_mod_(simplified(problem_.mask_mod)) {}

Problem simplified_and_ordered(const Problem& problem) {
  Problem ordered = *SimplifiedProblem(problem);
  for (std::optional<Program>* program : {&ordered.score_mod, &ordered.mask_mod}) {
    if (*program) {
      **program = score::order_nodes(**program);
    }
  }
  return ordered;
}

std::optional<Problem> simplified_for_own_keys(const Problem& problem) {
  Problem known = problem;
  bool is_cheaper = false;
  for (std::optional<Program>* program : {&known.score_mod, &known.mask_mod}) {
    if (*program && score::divides_by_kv_len(**program)) {
      **program = score::with_kv_len(**program, problem.kv_len);
      is_cheaper = true;
    }
  }
  return is_cheaper ? std::optional(simplified_and_ordered(known)) : std::nullopt;
}

}  // namespace flashlift::runtime
