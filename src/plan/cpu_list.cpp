#include <algorithm>

#include "plan/cpu_list.h"
#include "support/environment.h"
#include "support/error.h"

namespace flashlift::plan {
namespace {

using cpu::Capability;
using cpu::Isa;

constexpr CpuImplementation kList[] = {
    {.full_name = "cpu_amx", .isa = Isa::kAmx, .bf16_products = true},
    {.full_name = "cpu_avx512_bf16",
     .isa = Isa::kAvx512Bf16,
     .bf16_products = true,
     .faster_with = Capability::kFastBf16Dot},
    {.full_name = "cpu_avx512", .isa = Isa::kAvx512},
    {.full_name = "cpu_avx2", .isa = Isa::kAvx2},
    {.full_name = "cpu_portable", .isa = Isa::kPortable},
};

// Whether the list has it before the implementation that FLASHLIFT_ISA names.
bool passed_over(const CpuImplementation& row, const CpuMachine& machine) {
  return machine.first && &row < &*std::ranges::find(kList, *machine.first, &CpuImplementation::isa);
}

}  // namespace

std::span<const CpuImplementation> cpu_list() { return kList; }

Result<CpuMachine> this_cpu() {
  CpuMachine machine{cpu::detect_capabilities(), std::nullopt};
  const std::optional<std::string_view> wanted = environment_value(EnvironmentVariable::kIsa);
  if (!wanted) {
    return machine;
  }
  std::string names;
  for (const Isa isa : cpu::kAllIsas) {
    if (*wanted == to_string(isa)) {
      machine.first = isa;
      return machine;
    }
    names += (names.empty() ? "" : ", ") + std::string(to_string(isa));
  }
  return invalid_argument("FLASHLIFT_ISA is '{}', expected one of {}", *wanted, names);
}

std::optional<cpu::Isa> best_isa(const CpuMachine& machine) {
  for (const CpuImplementation& row : kList) {
    if (machine.has.has_all(needs_of(row.isa)) && !passed_over(row, machine)) {
      return row.isa;
    }
  }
  return std::nullopt;
}

bool is_less_exact(const CpuImplementation& row, const Problem& problem) {
  return row.bf16_products && problem.out_dtype == DType::kF32;
}

std::optional<std::string> refusal(const CpuImplementation& row, const Problem& problem, const CpuMachine& machine,
                                   bool by_name) {
  if (const auto missing = machine.has.missing(needs_of(row.isa))) {
    return fmt::format("this processor does not have {}", describe(*missing));
  }
  if (passed_over(row, machine)) {
    return fmt::format("FLASHLIFT_ISA is {}", to_string(*machine.first));
  }
  if (problem.want_residual) {
    return "no backward pass on a CPU reads the residual of an output: compile without it";
  }
  if (row.bf16_products && problem.dtype != DType::kBF16) {
    return fmt::format("multiplies bf16 operands only, and these are {}", to_string(problem.dtype));
  }
  if (is_less_exact(row, problem) && !by_name) {
    return "the output is f32, and this rounds probabilities to bf16; ask for it by name to use it";
  }
  if (row.bf16_products && problem.drops_keys()) {
    return "dropout works on probabilities in f32, and this rounds them to bf16";
  }
  if (row.faster_with && !machine.has.has(*row.faster_with) && !by_name) {
    return "f32 products are faster on this processor; ask for it by name to use it";
  }
  return std::nullopt;
}

}  // namespace flashlift::plan
