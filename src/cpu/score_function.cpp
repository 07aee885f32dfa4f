#include "cpu/score_function.h"

#include "cpu/interpreter/interpreter.h"
#include "support/error.h"
#ifdef FLASHLIFT_HAS_JIT
#include "cpu/jit/compiler.h"
#endif

namespace flashlift::cpu {

#ifdef FLASHLIFT_HAS_JIT

bool compiles_programs(Isa isa) { return isa != Isa::kPortable; }

Result<std::shared_ptr<const CompiledScore>> compile_score(const Problem& problem, Isa isa) {
  return compiles_programs(isa) ? jit_score(problem, isa) : interpret_score(problem, isa);
}

Result<std::shared_ptr<const CompiledGradient>> compile_gradient(const Problem& problem, Isa isa,
                                                                 const std::vector<bool>& wants_gradient) {
  return compiles_programs(isa) ? jit_gradient(problem, isa, wants_gradient)
                                : interpret_gradient(problem, isa, wants_gradient);
}

Result<std::string> score_assembly(const Problem& problem, Isa isa) {
  return compiles_programs(isa) ? jit_assembly(problem, isa)
                                : std::string("; programs are interpreted: nothing is generated\n");
}

#else

bool compiles_programs(Isa /*isa*/) { return false; }

Result<std::shared_ptr<const CompiledScore>> compile_score(const Problem& problem, Isa isa) {
  return interpret_score(problem, isa);
}

Result<std::shared_ptr<const CompiledGradient>> compile_gradient(const Problem& problem, Isa isa,
                                                                 const std::vector<bool>& wants_gradient) {
  return interpret_gradient(problem, isa, wants_gradient);
}

Result<std::string> score_assembly(const Problem& /*problem*/, Isa /*isa*/) {
  return std::string("; programs are interpreted: nothing is generated\n");
}

#endif

}  // namespace flashlift::cpu
