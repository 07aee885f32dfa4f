#include "runtime/simplified.h"

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

}  // namespace flashlift::runtime
