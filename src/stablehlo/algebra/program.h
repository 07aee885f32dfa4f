// Translates formulas into score programs.
#pragma once

#include <vector>

#include "flashlift/problem.h"
#include "stablehlo/algebra/reason.h"
#include "stablehlo/algebra/roles.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

// The name, type and shape of a leaf as a captured tensor.
struct LeafInfo {
  Capture capture;
};

// Emits formulas over atoms as programs over b, h, q and kv.
class ProgramEmitter {
 public:
  ProgramEmitter(const SymArena& arena, const Roles& roles, const std::vector<int64_t>& sizes,
                 const std::vector<LeafInfo>& leaves)
      : arena_(arena), roles_(roles), sizes_(sizes), leaves_(leaves) {}

  // Refused with kReducesInProgram: a formula that contains a reduction.
  Outcome<Program> score_mod(SymId score) const;
  // The program of the conjunction of the guards.
  Outcome<Program> mask_mod(const std::vector<SymId>& guards) const;

 private:
  const SymArena& arena_;
  const Roles& roles_;
  const std::vector<int64_t>& sizes_;
  const std::vector<LeafInfo>& leaves_;
};

// All loads in a formula, each once.
std::vector<SymId> loads_of(const SymArena& arena, SymId formula);

// If every occurrence of the score in the formula is multiplied (or divided) by the same constant, removes this factor
// from the formula and returns it. Otherwise returns 1.
float extract_scale(SymArena& arena, SymId& formula);

}  // namespace flashlift::stablehlo
