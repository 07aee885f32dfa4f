// Score programs: small typed SSA programs over scalars that compute one attention score or mask bit.
//
// A score_mod maps (score, b, h, q, kv) to an f32 score; a mask_mod maps (b, h, q, kv) to i1, true where the key is
// kept. Both may read captured tensors at computed indices. Text form (whitespace is free, ';' equals a newline):
//
//   score_mod(slopes: f32[8]) {
//     %0 = load slopes[h]
//     %1 = sub kv, q
//     %2 = to_f32 %1
//     %3 = mul %0, %2
//     %4 = add score, %3
//     return %4
//   }
//
// Inputs stand by their names. The spelling or a suffix gives the type of a constant: 3 (i32), 3:i64, 0.5 (f32),
// -inf, nan, 0x3f800000:f32 (bits), true, false.
// A captured tensor's size may be `?`, which matches any size at run time, or the name of one of the call's sizes, such
// as `q_len` or `1|batch`; see Capture.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"
#include "flashlift/tensor.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

enum class Type : uint8_t { kI1, kI32, kI64, kF32 };
const char* to_string(Type type);

enum class Op : uint8_t {
#define FLASHLIFT_OP(name, ...) k_##name,
#include "flashlift/ops.def"
};

enum class TypeRule : uint8_t {
  kInputF32,    // () -> f32
  kInputI32,    // () -> i32
  kConstant,    // () -> any
  kLoad,        // (i32|i64 ...) -> the captured tensor's scalar type
  kSearch,      // (i32|i64) -> i32, of a captured tensor
  kNumeric,     // (T ...) -> T        with T in i32, i64, f32
  kInteger,     // (T ...) -> T        with T in i32, i64
  kBits,        // (T ...) -> T        with T in i1, i32, i64
  kFloat,       // (f32 ...) -> f32
  kCompare,     // (T, T) -> i1        with T in i32, i64, f32
  kCompareAny,  // (T, T) -> i1        with T in i1, i32, i64, f32
  kPredicate,   // (f32) -> i1
  kSelect,      // (i1, T, T) -> T
  kConvert,     // (any) -> the target
  kBitcast,     // (f32) -> i32 or (i32) -> f32
};

struct OpInfo {
  const char* name;
  int arity;
  TypeRule rule;
  const char* doc;
};
const OpInfo& info(Op op);
inline constexpr int kOpCount = 0
#define FLASHLIFT_OP(...) +1
#include "flashlift/ops.def"
    ;

using ValueId = uint32_t;  // index into Program::nodes

struct Node {
  Op op;
  Type type;
  std::vector<ValueId> operands;  // all smaller than the node's own id
  // constant: the value (i1 as 0 or 1, f32 as its bits); load and search: index into Program::captures; otherwise 0.
  int64_t payload = 0;
};

// A tensor that a program reads. The scalar type of a load is f32 for every float dtype, i1 for bool, i32 for integers
// of up to 32 signed (16 unsigned) bits and u8, i64 for u32 and i64.
struct Capture {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;  // negative: one of the named sizes below
  bool operator==(const Capture&) const = default;
};

// Sizes of captured tensors that each call determines, with their names in the text form.
inline constexpr int64_t kAnySize = -1;    // ?
inline constexpr int64_t kBatchSize = -2;  // batch
inline constexpr int64_t kHeadsSize = -3;  // heads: query heads
inline constexpr int64_t kQLenSize = -4;   // q_len
inline constexpr int64_t kKvLenSize = -5;  // kv_len
inline constexpr int64_t kSameSize = -6;   // n: any, but the same wherever a problem's captured tensors have it
// 1|batch and so on: this size, or 1, which broadcasts, since indices are clamped.
constexpr int64_t or_one(int64_t size) { return size - 8; }

// Whether an operation reads a captured tensor, which its payload names.
constexpr bool reads_capture(Op op) { return op == Op::k_load || op == Op::k_search; }

Type scalar_type(DType dtype);

enum class ProgramKind : uint8_t { kScoreMod, kMaskMod };

struct Program {
  ProgramKind kind = ProgramKind::kScoreMod;
  std::vector<Capture> captures;
  std::vector<Node> nodes;
  ValueId result = 0;
};

// Limits of input from outside.
inline constexpr size_t kMaxProgramNodes = 4096;
inline constexpr size_t kMaxCaptures = 32;
inline constexpr size_t kMaxProgramText = 1 << 20;

// Reads the text form. Errors carry line and column.
Result<Program> parse_program(std::string_view text);
// Prints the text form; parse_program(print(p)) is p.
std::string print(const Program& program);
// The same on one line, with ';' instead of newlines.
std::string print_one_line(const Program& program);

}  // namespace flashlift

#pragma GCC visibility pop
