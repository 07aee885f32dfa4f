#include "runtime/cpu_attention.h"

#include <algorithm>

#include "cpu/backward.h"
#include "cpu/forward.h"
#include "plan/cpu_list.h"
#include "plan/implementation.h"
#include "runtime/kernel_cache.h"
#include "runtime/program_key.h"
#include "runtime/simplified.h"
#include "runtime/tbb_executor.h"
#include "runtime/verify_values.h"
#include "support/default_floats.h"
#include "support/error.h"
#include "support/lazy.h"
#include "support/log.h"

namespace flashlift::runtime {
namespace {

constexpr size_t kCachedPrograms = 256;
constexpr size_t kCachedBackwards = 16;  // per attention

KernelCache<cpu::CompiledScore>& score_cache() {
  static constinit Lazy<KernelCache<cpu::CompiledScore>> cache;
  return cache.get([] { return KernelCache<cpu::CompiledScore>(kCachedPrograms); });
}

KernelCache<cpu::CompiledGradient>& gradient_cache() {
  static constinit Lazy<KernelCache<cpu::CompiledGradient>> cache;
  return cache.get([] { return KernelCache<cpu::CompiledGradient>(kCachedPrograms); });
}

Result<std::shared_ptr<const cpu::CompiledGradient>> compile_gradient(const SimplifiedProblem& problem, cpu::Isa isa,
                                                                      const std::vector<bool>& wanted) {
  std::string key = program_key(problem, isa) + "\n";
  for (const bool one : wanted) {
    key += one ? '1' : '0';
  }
  return gradient_cache().get(key, [&] { return cpu::compile_gradient(*problem, isa, wanted); });
}

class CpuAttention : public Attention::Implementation {
 public:
  // The kernels of the forward pass, and those of the backward pass, or the reason why there are none.
  CpuAttention(const Problem& given, const SimplifiedProblem& compiled, const CompileOptions& options,
               cpu::Forward forward, Result<cpu::Forward> backward_kernels)
      : given_(given),
        contents_(contents_of(given)),
        compiled_(compiled),
        forward_threads_(options.forward.threads),
        backward_threads_(options.backward.threads),
        backward_config_(backward_config(options.backward)),
        forward_(std::move(forward)),
        backward_kernels_(std::move(backward_kernels)) {}

  static cpu::BackwardConfig backward_config(const Tuning& tuning) { return {.chunk = tuning.kv_tile}; }

  const Problem& problem() const override { return given_; }

  Status run(const AttentionArguments& arguments, const RunOptions& options) const override {
    FLASHLIFT_RETURN_IF_ERROR(verify_values(given_, contents_, arguments));
    return forward_.run(arguments, parallel(options, forward_threads_));
  }

  Status prepare_backward(const std::vector<bool>& capture_gradients) const override {
    uint64_t wanted_bits = 0;
    for (size_t i = 0; i < capture_gradients.size(); ++i) {
      wanted_bits |= uint64_t{capture_gradients[i]} << i;
    }
    const auto backward = get_backward(wanted_bits);
    return backward.ok() ? Status() : Status(backward.error());
  }

  bool reads_residual() const override { return false; }

  Status run_backward(const BackwardArguments& arguments, const RunOptions& options) const override {
    FLASHLIFT_RETURN_IF_ERROR(verify_values(given_, contents_, arguments.forward));
    uint64_t wanted_bits = 0;
    for (size_t i = 0; i < arguments.d_captures.size(); ++i) {
      wanted_bits |= uint64_t{arguments.d_captures[i].has_value()} << i;
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const auto backward, get_backward(wanted_bits));
    return backward->run(arguments, parallel(options, backward_threads_));
  }

  int64_t workspace_bytes(int concurrency) const override { return forward_.workspace_bytes(concurrency); }
  int64_t backward_workspace_bytes(int concurrency) const override {
    return backward_kernels_.ok() ? cpu::Backward::workspace_bytes(*backward_kernels_, backward_config_, concurrency)
                                  : 0;
  }
  Result<std::string> code() const override { return forward_.code(); }

 private:
  // wanted_bits: one bit per captured tensor. The key is short enough for std::string to allocate nothing.
  Result<std::shared_ptr<const cpu::Backward>> get_backward(uint64_t wanted_bits) const {
    static_assert(2 * kMaxCaptures <= 64);
    if (!backward_kernels_.ok()) {
      return backward_kernels_.error();
    }
    const std::string key(reinterpret_cast<const char*>(&wanted_bits), sizeof(wanted_bits));
    return backwards_.get(key, [&]() -> Result<std::shared_ptr<const cpu::Backward>> {
      std::vector<bool> wanted(given_.captures.size());
      for (size_t i = 0; i < wanted.size(); ++i) {
        wanted[i] = ((wanted_bits >> i) & 1) != 0;
      }
      FLASHLIFT_ASSIGN_OR_RETURN(cpu::Backward compiled,
                                 cpu::Backward::compile(
                                     *backward_kernels_, wanted,
                                     [&](const Problem&, cpu::Isa isa, const std::vector<bool>& of) {
                                       return compile_gradient(compiled_, isa, of);
                                     },
                                     backward_config_));
      return std::make_shared<const cpu::Backward>(std::move(compiled));
    });
  }

  // most: the largest number of threads, 0 for all
  static cpu::Parallel parallel(const RunOptions& options, int most) {
    Executor& executor = options.executor != nullptr ? *options.executor : default_executor();
    return {most > 0 ? std::min(most, executor.concurrency()) : executor.concurrency(),
            [&executor](int64_t count, const std::function<void(int64_t)>& body) {
              executor.parallel_for(count, [&body](int64_t i) {
                const DefaultFloats floats;  // of the executor's threads
                body(i);
              });
            },
            options.cancelled};
  }

  Problem given_;
  std::vector<problem::Holds> contents_;
  SimplifiedProblem compiled_;
  int forward_threads_;
  int backward_threads_;
  cpu::BackwardConfig backward_config_;
  cpu::Forward forward_;
  Result<cpu::Forward> backward_kernels_;
  // The key is the set of captured tensors whose gradients are requested.
  mutable KernelCache<cpu::Backward> backwards_{kCachedBackwards};
};

using Answers = plan::Answers<plan::CpuImplementation>;

Result<cpu::Forward> compile_forward(const SimplifiedProblem& problem, cpu::Isa isa, const cpu::ForwardConfig& config) {
  const auto compile_score = [&](const Problem& p, cpu::Isa i) {
    return score_cache().get(program_key(problem, i), [&] { return cpu::compile_score(p, i); });
  };
  return cpu::Forward::compile(*problem, cpu::tile_kernels(isa), compile_score, config);
}

// The kernels of the first implementation in a list that accepts the problem, and the answers of all.
Result<cpu::Forward> choose(const SimplifiedProblem& problem, const Result<Answers>& answers, const char* pass,
                            const cpu::ForwardConfig& config, std::vector<Consideration>& considerations) {
  if (!answers.ok()) {
    return answers.error();
  }
  const plan::CpuImplementation* const row = plan::first_of(*answers);
  considerations = plan::considerations(*answers, [](const plan::CpuImplementation&) { return std::string(); });
  if (row == nullptr) {
    return unsupported("no CPU implementation of the {} pass takes this problem: {}", pass, plan::reasons_of(*answers));
  }
  return compile_forward(problem, row->isa, config);
}

// A size of 0 leaves the choice to the library.
cpu::ForwardConfig forward_config(const Tuning& tuning) {
  cpu::ForwardConfig config;
  config.q_tile = tuning.q_tile == 0 ? config.q_tile : tuning.q_tile;
  config.kv_tile = tuning.kv_tile == 0 ? config.kv_tile : tuning.kv_tile;
  config.splits = tuning.splits;
  return config;
}

// Describes what differs from the library's own choice.
std::string note(const Tuning& tuning) {
  return tuning == Tuning{} ? "" : fmt::format(" (tuned: {})", to_string(tuning));
}

Status check_threads(const Tuning& tuning) {
  return tuning.threads >= 0 ? Status() : invalid_argument("threads are {}; expected 1 or more", tuning.threads);
}

}  // namespace

Result<std::shared_ptr<const Attention::Implementation>> compile_cpu(const Problem& problem,
                                                                     const CompileOptions& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const plan::CpuMachine machine, plan::this_cpu());
  const SimplifiedProblem compiled(problem);
  FLASHLIFT_RETURN_IF_ERROR(check_threads(options.forward));
  FLASHLIFT_RETURN_IF_ERROR(check_threads(options.backward));
  FLASHLIFT_RETURN_IF_ERROR(CpuAttention::backward_config(options.backward).verify());
  const auto evaluate = [&](const char* what, const Tuning& tuning) {
    return plan::evaluate(plan::cpu_list(),
                          tuning.implementation.empty() ? options.implementation : tuning.implementation, what,
                          [&](const plan::CpuImplementation& row, bool by_name) {
                            return plan::refusal(row, *compiled, machine, by_name);
                          });
  };
  std::vector<Consideration> considerations;
  FLASHLIFT_ASSIGN_OR_RETURN(cpu::Forward forward, choose(compiled, evaluate("the CPU's forward pass", options.forward),
                                                          "forward", forward_config(options.forward), considerations));
  considerations.back().reason = forward.describe() + note(options.forward);
  std::vector<Consideration> backward_considerations;
  Result<cpu::Forward> backward_kernels =
      choose(compiled, evaluate("the CPU's backward pass", options.backward), "backward", {}, backward_considerations);
  if (backward_kernels.ok()) {
    backward_considerations.back().reason =
        cpu::Backward::describe(*backward_kernels, CpuAttention::backward_config(options.backward)) +
        note(options.backward);
  }
  for (const Consideration& one : considerations) {
    log(one.accepted ? LogLevel::kInfo : LogLevel::kDebug, "{}{}: {}", one.implementation,
        one.accepted ? "" : " rejected", one.reason);
  }
  auto attention =
      std::make_shared<CpuAttention>(problem, compiled, options, std::move(forward), std::move(backward_kernels));
  attention->name = considerations.back().implementation;
  attention->considerations = std::move(considerations);
  attention->backward_considerations = std::move(backward_considerations);
  return std::shared_ptr<const Attention::Implementation>(std::move(attention));
}

}  // namespace flashlift::runtime
