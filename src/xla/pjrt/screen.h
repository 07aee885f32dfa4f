// What a program shows at first sight, before anything is parsed: whether it may hold attention at all.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flashlift::pjrt {

// "text", "bytecode" (of MLIR) or "VHLO 1.16.1" (a portable artifact of StableHLO).
std::string form_of(std::string_view module);

// The module's name, where it is text and has one.
std::string name_of(std::string_view module);

// Whether the module names what every attention is made of: a product and an exponential, or a call that stands for
// them. It reads the bytes a few times, at memory's speed, so that a module without attention costs nothing.
bool may_hold_attention(std::string_view module);

// What a CompileOptionsProto says about partitions of the program: 1 where it says nothing, 0 where it cannot be read.
int64_t partition_count(std::string_view options);

}  // namespace flashlift::pjrt
