// The CPU backend's list.
#pragma once

#include <optional>
#include <span>
#include <string>

#include "cpu/tile/isa.h"
#include "flashlift/problem.h"
#include "flashlift/result.h"

namespace flashlift::plan {

// Calls of any lengths: the kernels decide between few and many rows themselves. Programs are compiled for the same
// instruction set as the tile kernels.
struct CpuImplementation {
  const char* full_name;
  cpu::Isa isa;
  bool bf16_products = false;  // its products take bf16 operands only; those of the others take f32
  std::optional<cpu::Capability> faster_with =
      std::nullopt;  // without this capability it runs only if a caller names it

  const char* name() const { return full_name; }
};

// One list for both directions: a backward pass runs on the tile kernels of a forward pass.
std::span<const CpuImplementation> cpu_list();

// What the choice of an implementation depends on besides the problem.
struct CpuMachine {
  cpu::Capabilities has;
  std::optional<cpu::Isa> first;  // FLASHLIFT_ISA: skips the implementations listed before this one's
};
// Errors: kInvalidArgument for an unknown FLASHLIFT_ISA.
Result<CpuMachine> this_cpu();

// The first tile kernels of the list that the machine can run, with products of any type.
std::optional<cpu::Isa> best_isa(const CpuMachine& machine);

// Whether an implementation rounds more than the problem's output does, so that it runs only if a caller names it.
// Tuning does not choose it either.
bool is_less_exact(const CpuImplementation& row, const Problem& problem);

// The reason why an implementation refuses a verified problem, forward or backward; none if it accepts.
std::optional<std::string> refusal(const CpuImplementation& row, const Problem& problem, const CpuMachine& machine,
                                   bool by_name);

}  // namespace flashlift::plan
