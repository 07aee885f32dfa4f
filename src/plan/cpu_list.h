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
  bool bf16_products = false;                                 // of operands in bf16 only; the others multiply f32
  std::optional<cpu::Capability> faster_with = std::nullopt;  // without it, it runs only if it is asked for by name

  const char* name() const { return full_name; }
};

// Of both directions: a backward pass runs on the tile kernels of a forward pass.
std::span<const CpuImplementation> cpu_list();

// What decides on a CPU's implementations besides the problem.
struct CpuMachine {
  cpu::Capabilities has;
  std::optional<cpu::Isa> first;  // FLASHLIFT_ISA: implementations listed before this one's are passed over
};
// Errors: kInvalidArgument for an unknown FLASHLIFT_ISA.
Result<CpuMachine> this_cpu();

// The first tile kernels of the list that the machine runs, whatever they multiply.
std::optional<cpu::Isa> best_isa(const CpuMachine& machine);

// Why an implementation does not take a verified problem, forward or backward; none if it does.
std::optional<std::string> refusal(const CpuImplementation& row, const Problem& problem, const CpuMachine& machine,
                                   bool by_name);

}  // namespace flashlift::plan
