#include "runtime/simplified.h"

#include "score/simplify.h"

namespace flashlift::runtime {

Problem simplified(const Problem& problem) {
  Problem result = problem;
  for (auto* program : {&result.score_mod, &result.mask_mod}) {
    if (*program) {
      **program = score::simplify(**program);
      if (score::is_identity(**program)) {
        program->reset();
      }
    }
  }
  return result;
}

}  // namespace flashlift::runtime
