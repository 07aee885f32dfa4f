#include "runtime/program_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "score/canonical.h"

namespace flashlift::runtime {

std::string program_key(const SimplifiedProblem& problem, cpu::Isa isa) {
  const std::vector<Capture>& captures = (*problem).captures;
  std::string key = cpu::to_string(isa);
  for (const auto* program : {&problem.score_mod(), &problem.mask_mod()}) {
    if (!program->has_value()) {
      key += "\n-";
      continue;
    }
    std::vector<std::string> names;
    const Program canonical = score::canonicalize(**program, &names);
    key += "\n" + print_one_line(canonical);
    for (const std::string& name : names) {
      const auto found =
          std::find_if(captures.begin(), captures.end(), [&](const Capture& capture) { return capture.name == name; });
      key += fmt::format(" {}", found - captures.begin());
    }
  }
  return key;
}

}  // namespace flashlift::runtime
