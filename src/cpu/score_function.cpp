#include "cpu/score_function.h"

#include "cpu/interpreter/interpreter.h"
#include "support/error.h"
#ifdef FLASHLIFT_HAS_JIT
#include <optional>

#include "cpu/jit/compiler.h"
#include "problem/differentiate.h"
#include "support/log.h"
#endif

namespace flashlift::cpu {

#ifdef FLASHLIFT_HAS_JIT

bool compiles_programs(Isa isa) { return isa != Isa::kPortable; }

namespace {

// LLVM compiles long programs without optimisation, and such code keeps each node's vector on the stack of the thread
// that calls it: 512 KiB are usual in pools. What does not fit is interpreted.
bool compiles(size_t nodes, Isa isa) {
  constexpr size_t kMostStackBytes = size_t{320} << 10;
  if (!compiles_programs(isa)) {
    return false;
  }
  const bool fits = nodes * static_cast<size_t>(tile_kernels(isa).lanes) * sizeof(float) <= kMostStackBytes;
  if (!fits) {
    log(LogLevel::kInfo, "programs of {} nodes are interpreted: compiled, they need too much of a thread's stack",
        nodes);
  }
  return fits;
}

size_t count_nodes(const std::optional<Program>& program) { return program ? program->nodes.size() : 0; }

}  // namespace

Result<std::shared_ptr<const CompiledScore>> compile_score(const Problem& problem, Isa isa) {
  return compiles(count_nodes(problem.score_mod) + count_nodes(problem.mask_mod), isa) ? jit_score(problem, isa)
                                                                                       : interpret_score(problem, isa);
}

Result<std::shared_ptr<const CompiledGradient>> compile_gradient(const Problem& problem, Isa isa,
                                                                 const std::vector<bool>& wants_gradient) {
  const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient);
  const size_t nodes = derivative ? derivative->body.nodes.size() : 0;
  return compiles(nodes + count_nodes(problem.mask_mod), isa) ? jit_gradient(problem, isa, wants_gradient)
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
