// Looks at a program's bytes before anything is parsed, to decide whether it may contain attention.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashlift::pjrt {

// "text", "bytecode" (of MLIR) or "VHLO 1.16.1" (a portable artifact of StableHLO).
std::string form_of(std::string_view module);

// The module's name, if it is text and has one.
std::string name_of(std::string_view module);

// Whether the module names the parts of every attention: a product and an exponential, or a call that stands for them.
// It reads the bytes a few times, at the speed of memory, so that a module without attention costs almost nothing.
bool may_hold_attention(std::string_view module);

// The number of partitions in a CompileOptionsProto: 1 if there is none, 0 if it cannot be read.
int64_t partition_count(std::string_view options);

}  // namespace flashlift::pjrt
