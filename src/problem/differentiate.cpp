#include "problem/differentiate.h"

#include <algorithm>

namespace flashlift::problem {

std::optional<score::Derivative> differentiate(const Problem& problem, const std::vector<bool>& wants_gradient) {
  if (!problem.score_mod) {
    return std::nullopt;
  }
  const score::SimplifiedProgram score_mod(*problem.score_mod);
  std::vector<bool> wanted;
  for (const Capture& capture : score_mod->captures) {
    const auto found = std::find(problem.captures.begin(), problem.captures.end(), capture);
    const auto index = static_cast<size_t>(found - problem.captures.begin());
    wanted.push_back(index < wants_gradient.size() && wants_gradient[index]);
  }
  return score::differentiate(score_mod, wanted);
}

}  // namespace flashlift::problem
