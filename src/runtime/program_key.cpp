#include "runtime/program_key.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "score/canonical.h"

namespace flashlift::runtime {

std::string program_key(const Problem& problem, cpu::Isa isa) {
  std::string key = cpu::to_string(isa);
  for (const auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (!program->has_value()) {
      key += "\n-";
      continue;
    }
    std::vector<std::string> names;
    const Program canonical = score::canonicalize(**program, &names);
    key += "\n" + print_one_line(canonical);
    for (const std::string& name : names) {
      const auto found = std::find_if(problem.captures.begin(), problem.captures.end(),
                                      [&](const Capture& capture) { return capture.name == name; });
      key += fmt::format(" {}", found - problem.captures.begin());
    }
  }
  return key;
}

}  // namespace flashlift::runtime
