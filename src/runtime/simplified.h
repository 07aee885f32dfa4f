// Problems as backends compile them.
#pragma once

#include <optional>

#include "flashlift/problem.h"
#include "score/simplify.h"

namespace flashlift::runtime {

// A problem whose programs are simplified, and left out where they change nothing. Unused captures stay, so that the
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

// The same for backends that keep machine code: programs that differ in the order of their nodes alone share it.
Problem simplified_and_ordered(const Problem& problem);

}  // namespace flashlift::runtime
