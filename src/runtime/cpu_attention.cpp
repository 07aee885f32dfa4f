#include "runtime/cpu_attention.h"

#include <algorithm>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "runtime/kernel_cache.h"
#include "runtime/program_key.h"
#include "runtime/simplified.h"
#include "runtime/tbb_executor.h"
#include "support/error.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

constexpr size_t kCachedPrograms = 256;
constexpr size_t kCachedBackwards = 16;  // of one attention

KernelCache<cpu::CompiledScore>& score_cache() {
  static auto* cache = new KernelCache<cpu::CompiledScore>(kCachedPrograms);
  return *cache;
}

KernelCache<cpu::CompiledGradient>& gradient_cache() {
  static auto* cache = new KernelCache<cpu::CompiledGradient>(kCachedPrograms);
  return *cache;
}

Result<std::shared_ptr<const cpu::CompiledGradient>> compile_gradient(const Problem& problem, cpu::Isa isa,
                                                                      const std::vector<bool>& wanted) {
  std::string key = program_key(problem, isa) + "\n";
  for (const bool one : wanted) {
    key += one ? '1' : '0';
  }
  return gradient_cache().get(key, [&] { return cpu::compile_gradient(problem, isa, wanted); });
}

class CpuAttention : public Attention::Implementation {
 public:
  CpuAttention(const Problem& given, cpu::Forward forward) : given_(given), forward_(std::move(forward)) {}

  const Problem& problem() const override { return given_; }

  Status run(const AttentionArguments& arguments, const RunOptions& options) const override {
    return forward_.run(arguments, parallel(options));
  }

  Status run_backward(const BackwardArguments& arguments, const RunOptions& options) const override {
    // A bit for each captured tensor: such a key is short enough to need no memory.
    uint64_t wanted_bits = 0;
    static_assert(2 * kMaxCaptures <= 64);
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      wanted_bits |= uint64_t{arguments.d_captures[i].has_value()} << i;
    }
    const std::string key(reinterpret_cast<const char*>(&wanted_bits), sizeof(wanted_bits));
    FLASHLIFT_ASSIGN_OR_RETURN(const auto backward,
                               backwards_.get(key, [&]() -> Result<std::shared_ptr<const cpu::Backward>> {
                                 std::vector<bool> wanted(given_.captures.size());
                                 for (size_t i = 0; i < wanted.size(); ++i) {
                                   wanted[i] = ((wanted_bits >> i) & 1) != 0;
                                 }
                                 FLASHLIFT_ASSIGN_OR_RETURN(cpu::Backward compiled,
                                                            cpu::Backward::compile(forward_, wanted, compile_gradient));
                                 return std::make_shared<const cpu::Backward>(std::move(compiled));
                               }));
    return backward->run(arguments, parallel(options));
  }

  int64_t workspace_bytes(int concurrency) const override { return forward_.workspace_bytes(concurrency); }
  int64_t backward_workspace_bytes(int concurrency) const override {
    return cpu::Backward::workspace_bytes(forward_, concurrency);
  }
  Result<std::string> code() const override { return forward_.code(); }

 private:
  static cpu::Parallel parallel(const RunOptions& options) {
    Executor& executor = options.executor != nullptr ? *options.executor : default_executor();
    return {
        executor.concurrency(),
        [&executor](int64_t count, const std::function<void(int64_t)>& body) { executor.parallel_for(count, body); },
        options.cancelled};
  }

  Problem given_;
  cpu::Forward forward_;
  // By which captured tensors' gradients are wanted.
  mutable KernelCache<cpu::Backward> backwards_{kCachedBackwards};
};

}  // namespace

Result<std::shared_ptr<const Attention::Implementation>> compile_cpu(const Problem& problem,
                                                                     const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const cpu::Isa best, cpu::choose_isa());
  std::vector<Consideration> considerations;
  std::string reasons;
  for (const cpu::Isa isa : {cpu::Isa::kAmx, cpu::Isa::kAvx512Bf16, cpu::Isa::kAvx512, cpu::Isa::kAvx2}) {
    const std::string name = std::string("cpu_") + cpu::to_string(isa);
    std::string reason;
    if (!options.implementation.empty() && options.implementation != name) {
      reason = fmt::format("{} was asked for by name", options.implementation);
    } else if (isa > best) {
      reason = fmt::format("this processor, or FLASHLIFT_ISA, stops at {}", cpu::to_string(best));
    } else if (isa >= cpu::Isa::kAvx512Bf16 && problem.dtype != DType::kBF16) {
      reason = fmt::format("multiplies bf16 operands only, and these are {}", to_string(problem.dtype));
    } else if (isa == cpu::Isa::kAvx512Bf16 && options.implementation.empty() && !cpu::has_fast_bf16_dot()) {
      reason = "f32 products are faster on this processor; ask for it by name to use it";
    }
    if (reason.empty() && isa >= cpu::Isa::kAvx512Bf16 && problem.dropout > 0) {
      reason = "dropout works on probabilities in f32, and this rounds them to bf16";
    }
    if (reason.empty()) {
      const Problem compiled = simplified(problem);
      cpu::Forward::ScoreCompiler compile_score = [&](const Problem& p, cpu::Isa i) {
        return score_cache().get(program_key(p, i), [&] { return cpu::compile_score(p, i); });
      };
      FLASHLIFT_ASSIGN_OR_RETURN(cpu::Forward forward,
                                 cpu::Forward::compile(compiled, cpu::tile_kernels(isa), compile_score));
      considerations.push_back({name, true, forward.describe()});
      log(LogLevel::kInfo, "{}: {}", name, considerations.back().reason);
      auto implementation = std::make_shared<CpuAttention>(problem, std::move(forward));
      implementation->name = name;
      implementation->considerations = std::move(considerations);
      return std::shared_ptr<const Attention::Implementation>(std::move(implementation));
    }
    log(LogLevel::kDebug, "{} rejected: {}", name, reason);
    reasons += fmt::format("{}{}: {}", reasons.empty() ? "" : "; ", name, reason);
    considerations.push_back({name, false, reason});
  }
  return unsupported("no CPU implementation takes this problem: {}", reasons);
}

}  // namespace flashlift::runtime
