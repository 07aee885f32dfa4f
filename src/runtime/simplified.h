// The simplified problems that backends compile.
#pragma once

#include <optional>

#include "flashlift/problem.h"
#include "score/simplify.h"

namespace flashlift::runtime {

// The problem with simplified programs, and without programs that change nothing. Unused captures stay, so that the
// signature of a call is the same.
class SimplifiedProblem {
 public:
  explicit SimplifiedProblem(const Problem& problem);

  const Problem& operator*() const { return problem_; }
  const std::optional<score::SimplifiedProgram>& score_mod() const { return score_mod_; }
  const std::optional<score::SimplifiedProgram>& mask_mod() const { return mask_mod_; }

 private:
  Problem problem_;
  std::optional<score::SimplifiedProgram> score_mod_;
  std::optional<score::SimplifiedProgram> mask_mod_;
};

// The same for backends that cache machine code: programs that differ only in the order of their nodes share the code.
Problem simplified_and_ordered(const Problem& problem);
// The same for calls of the problem's own number of keys alone. None if its programs are no cheaper then.
std::optional<Problem> simplified_for_own_keys(const Problem& problem);

}  // namespace flashlift::runtime
