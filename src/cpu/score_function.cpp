#include "cpu/score_function.h"

#include "cpu/interpreter/interpreter.h"
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
  return compiles_programs(isa) &&
         nodes * static_cast<size_t>(tile_kernels(isa).lanes) * sizeof(float) <= kMostStackBytes;
}

}  // namespace

bool compiles_programs(const Problem& problem, Isa isa) { return compiles(count_nodes(problem), isa); }

Result<std::shared_ptr<const CompiledScore>> compile_score(const Problem& problem, Isa isa) {
  return compiles_programs(problem, isa) ? jit_score(problem, isa) : interpret_score(problem, isa);
}

Result<std::shared_ptr<const CompiledGradient>> compile_gradient(const Problem& problem, Isa isa,
                                                                 const std::vector<bool>& wants_gradient) {
  size_t nodes = problem.mask_mod ? problem.mask_mod->nodes.size() : 0;
  if (const std::optional<score::Derivative> derivative = problem::differentiate(problem, wants_gradient)) {
    nodes += derivative->body.nodes.size();
  }
  if (compiles(nodes, isa)) {
    return jit_gradient(problem, isa, wants_gradient);
  }
  if (compiles_programs(isa)) {
    log(LogLevel::kInfo, "a gradient of {} nodes is interpreted: compiled, it needs too much of a thread's stack",
        nodes);
  }
  return interpret_gradient(problem, isa, wants_gradient);
}

Result<std::string> score_assembly(const Problem& problem, Isa isa) {
  return compiles_programs(problem, isa) ? jit_assembly(problem, isa)
                                         : std::string("; programs are interpreted: nothing is generated\n");
}

#else

bool compiles_programs(Isa /*isa*/) { return false; }
bool compiles_programs(const Problem& /*problem*/, Isa /*isa*/) { return false; }

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
