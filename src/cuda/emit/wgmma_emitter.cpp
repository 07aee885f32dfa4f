#include "cuda/emit/wgmma_emitter.h"

#include <fmt/format.h>

namespace flashlift::cuda {
namespace {

std::string repeated(int count, const char* format) {
  std::string list;
  for (int i = 0; i < count; ++i) {
    list += (i > 0 ? ", " : "") + fmt::format(fmt::runtime(format), i);
  }
  return list;
}

std::string instruction(int n, const char* type) {
  return fmt::format("wgmma.mma_async.sync.aligned.m64n{}k16.f32.{}.{}", n, type, type);
}

// Both operands in shared memory: K-major, or along their rows if transposed.
std::string emit_shared(const char* name, int n, bool transposed, const char* type) {
  const int registers = n / 2;
  return fmt::format(
      "__device__ __forceinline__ void {6}(float (&d)[{0}], u64 a, u64 b, int accumulate) {{\n"
      "  asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{1}, 0;\\n\"\n"
      "               \"{2} {{{3}}}, %{0}, %{4}, p, 1, 1, {7:d}, {7:d};\\n}}\\n\"\n"
      "               : {5}\n"
      "               : \"l\"(a), \"l\"(b), \"r\"(accumulate));\n"
      "}}\n",
      registers, registers + 2, instruction(n, type), repeated(registers, "%{}"), registers + 1,
      repeated(registers, "\"+f\"(d[{}])"), name, transposed);
}

// The same into registers that hold nothing yet. (What accumulates reads its registers even if it is told not to, and
// so keeps their old values alive.)
std::string emit_first(const char* name, int n, bool transposed, const char* type) {
  const int registers = n / 2;
  return fmt::format(
      "__device__ __forceinline__ void {4}_first(float (&d)[{0}], u64 a, u64 b) {{\n"
      "  asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, 0, 0;\\n\"\n"
      "               \"{1} {{{2}}}, %{0}, %{6}, p, 1, 1, {5:d}, {5:d};\\n}}\\n\"\n"
      "               : {3}\n"
      "               : \"l\"(a), \"l\"(b));\n"
      "}}\n",
      registers, instruction(n, type), repeated(registers, "%{}"), repeated(registers, "\"=f\"(d[{}])"), name,
      transposed, registers + 1);
}

// Scores.
std::string emit_qk(int n, const char* type) { return emit_shared("wgmma_qk", n, false, type); }

// A part of d_q, of d_s and K.
std::string emit_dq(int columns, const char* type) {
  return emit_shared("wgmma_dq", columns, true, type) + "\n" + emit_first("wgmma_dq", columns, true, type);
}

// Output: probabilities in registers, V in shared memory along N.
std::string emit_pv(int n, const char* type) {
  const int registers = n / 2;
  return fmt::format(
      "__device__ __forceinline__ void wgmma_pv(float (&d)[{0}], u32 a0, u32 a1, u32 a2, u32 a3, u64 b, int "
      "accumulate) {{\n"
      "  asm volatile(\"{{\\n.reg .pred p;\\nsetp.ne.b32 p, %{8}, 0;\\n\"\n"
      "               \"{1} {{{2}}}, {{%{0}, %{3}, %{4}, %{5}}}, %{6}, p, 1, 1, 1;\\n}}\\n\"\n"
      "               : {7}\n"
      "               : \"r\"(a0), \"r\"(a1), \"r\"(a2), \"r\"(a3), \"l\"(b), \"r\"(accumulate));\n"
      "}}\n",
      registers, instruction(n, type), repeated(registers, "%{}"), registers + 1, registers + 2, registers + 3,
      registers + 4, repeated(registers, "\"+f\"(d[{}])"), registers + 5);
}

const char* type_name(const ForwardConfig& config) { return config.dtype == DType::kBF16 ? "bf16" : "f16"; }

std::string header(const std::string& text) {
  return "#pragma once\n#include \"cuda/kernels/common/ptx.cuh\"\n\nnamespace flashlift::cuda {\n\n" + text +
         "\n}  // namespace flashlift::cuda\n";
}

}  // namespace

std::string emit_wgmma(const ForwardConfig& config) {
  const char* type = type_name(config);
  return header(emit_qk(config.kv_tile, type) + "\n" + emit_pv(config.value_dim_padded, type));
}

std::string emit_backward_wgmma(const ForwardConfig& config) {
  const char* type = type_name(config);
  std::string text = emit_qk(config.kv_tile, type) + "\n" + emit_first("wgmma_qk", config.kv_tile, false, type) + "\n" +
                     emit_pv(config.head_dim_padded, type);
  if (config.value_dim_padded != config.head_dim_padded) {
    text += "\n" + emit_pv(config.value_dim_padded, type);
  }
  return header(text + "\n" + emit_dq(32, type) + "\n" + emit_dq(64, type));
}

}  // namespace flashlift::cuda
