// Score programs written in C++: a lambda runs once with symbolic values, and the builder records its operations.
//
//   Captured slopes("slopes", DType::kF32, {8});
//   Result<Program> alibi = trace_score_mod([&](Expr score, Expr b, Expr h, Expr q, Expr kv) {
//     return score + slopes(h) * (kv - q);
//   });
//   Result<Program> causal = trace_mask_mod([](Expr b, Expr h, Expr q, Expr kv) { return kv <= q; });
//
// Operands of different types are promoted as in C++ and PyTorch: i1 < i32 < i64 < f32. A mask_mod gives i1 or integer.
#pragma once

#include <concepts>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <memory>
#include <string>
#include <unordered_map>
#include <vector>

#include "flashlift/program.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift {

class ProgramBuilder;

// A symbolic scalar of one trace. A trace that uses an Expr of another one, or one that was computed outside of any,
// fails; constants may come from anywhere.
class Expr {
 public:
  Expr(int value);
  Expr(int64_t value);
  Expr(float value);
  Expr(double value) : Expr(static_cast<float>(value)) {}
  // Only of a bool: pointers convert to bool, and so does a function whose parentheses are missing (`kv < kv_len`).
  template <typename T>
    requires(std::same_as<T, bool> || std::same_as<T, std::vector<bool>::reference>)
  Expr(T value) : type_(Type::kI1), bits_(static_cast<bool>(value) ? 1 : 0) {}
  // unsigned, size_t, long long and others that do not become an int are i64. A number beyond it, such as SIZE_MAX for
  // a window without an end, is its largest.
  template <std::integral T>
    requires(sizeof(T) >= sizeof(int) && sizeof(T) <= sizeof(int64_t) && !std::same_as<T, int> &&
             !std::same_as<T, int64_t>)
  Expr(T value)
      : Expr(std::unsigned_integral<T> && static_cast<int64_t>(value) < 0 ? std::numeric_limits<int64_t>::max()
                                                                          : static_cast<int64_t>(value)) {}
  Expr(long double value) : Expr(static_cast<float>(value)) {}

  Type type() const { return type_; }

 private:
  friend class ProgramBuilder;
  Expr(Type type, ValueId id, uint64_t trace) : type_(type), id_(id), trace_(trace), is_constant_(false) {}

  Type type_;
  ValueId id_ = 0;
  uint64_t trace_ = 0;  // ProgramBuilder::trace_ of the builder that id_ belongs to
  int64_t bits_ = 0;    // of a constant
  bool is_constant_ = true;
};

// A tensor that programs read. `shape` may contain kAnySize and the other named sizes; t() reads a tensor of rank 0.
class Captured {
 public:
  Captured(std::string name, DType dtype, std::vector<int64_t> shape)
      : capture_{std::move(name), dtype, std::move(shape)} {}

  template <typename... Index>
  Expr operator()(Index... index) const {
    return load({Expr(index)...});
  }
  // t[i] is t(i), for tensors of one dimension.
  template <typename Index>
  Expr operator[](Index index) const {
    return load({Expr(index)});
  }
  // The number of elements <= x in a 1-D tensor of integers in ascending order.
  Expr search(Expr x) const;
  const Capture& capture() const { return capture_; }

 private:
  Expr load(const std::vector<Expr>& indices) const;
  Capture capture_;
};

// Records nodes, and shares equal ones. finish() returns the first error.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(ProgramKind kind);

  Expr input(Op op);
  Expr constant(Type type, int64_t bits);
  // Does not convert operands: their types must follow the op's rule. Not for inputs, constants and loads.
  Expr apply(Op op, const std::vector<Expr>& operands);
  Expr convert(Expr value, Type type);
  // These declare the captured tensor if it is new.
  Expr load(const Capture& capture, const std::vector<Expr>& indices);
  Expr search(const Capture& capture, Expr x);

  Result<Program> finish(Expr result);

  // The builder of the trace that runs on this thread, or null.
  static ProgramBuilder* current();

  // Makes a builder current while it lives.
  class Scope {
   public:
    explicit Scope(ProgramBuilder& builder);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    ProgramBuilder* previous_;
  };

 private:
  ValueId materialize(const Expr& value);
  Expr read(Op op, Type type, const Capture& capture, const std::vector<Expr>& operands);
  Expr add_node(Node node);
  void fail(Error error);

  Program program_;
  uint64_t trace_;                                     // differs between builders
  std::unordered_map<std::string, ValueId> existing_;  // node spelled out -> id
  std::optional<Error> error_;
};

Expr operator+(Expr x, Expr y);
Expr operator-(Expr x, Expr y);
Expr operator*(Expr x, Expr y);
Expr operator/(Expr x, Expr y);  // integers truncate towards zero, as in C++
Expr operator%(Expr x, Expr y);
Expr operator-(Expr x);
Expr operator==(Expr x, Expr y);
Expr operator!=(Expr x, Expr y);
Expr operator<(Expr x, Expr y);
Expr operator<=(Expr x, Expr y);
Expr operator>(Expr x, Expr y);
Expr operator>=(Expr x, Expr y);
// On i1 these are the logical operations. && and || do not short-circuit here; they exist because people write them.
Expr operator&(Expr x, Expr y);
Expr operator|(Expr x, Expr y);
Expr operator^(Expr x, Expr y);
Expr operator&&(Expr x, Expr y);
Expr operator||(Expr x, Expr y);
Expr operator!(Expr x);
Expr operator~(Expr x);
Expr operator<<(Expr x, Expr y);
Expr operator>>(Expr x, Expr y);
// x has the promoted type from then on.
inline Expr& operator+=(Expr& x, Expr y) { return x = x + y; }
inline Expr& operator-=(Expr& x, Expr y) { return x = x - y; }
inline Expr& operator*=(Expr& x, Expr y) { return x = x * y; }
inline Expr& operator/=(Expr& x, Expr y) { return x = x / y; }
inline Expr& operator%=(Expr& x, Expr y) { return x = x % y; }
inline Expr& operator&=(Expr& x, Expr y) { return x = x & y; }
inline Expr& operator|=(Expr& x, Expr y) { return x = x | y; }
inline Expr& operator^=(Expr& x, Expr y) { return x = x ^ y; }
inline Expr& operator<<=(Expr& x, Expr y) { return x = x << y; }
inline Expr& operator>>=(Expr& x, Expr y) { return x = x >> y; }

Expr select(Expr condition, Expr x, Expr y);
Expr min(Expr x, Expr y);
Expr max(Expr x, Expr y);
Expr abs(Expr x);
Expr sign(Expr x);
Expr is_finite(Expr x);
Expr ushr(Expr x, Expr y);  // x >> y, filling with zeros
Expr bitcast_i32(Expr x);   // the bits of an f32
Expr bitcast_f32(Expr x);   // the f32 with these bits
Expr floor_div(Expr x, Expr y);
Expr mod(Expr x, Expr y);
// A function for each row of the table's functions of f32: exp(x), pow(x, y), round_bf16(x), ...
#define FLASHLIFT_FUNCTION(name, ...) Expr name(Expr x);
#define FLASHLIFT_FUNCTION2(name, ...) Expr name(Expr x, Expr y);
#define FLASHLIFT_OP(...)
#include "flashlift/ops.def"
Expr to(Type type, Expr x);
// The number of queries and keys, as run-time values.
Expr q_len();
Expr kv_len();

template <typename F>
  requires std::invocable<F, Expr, Expr, Expr, Expr, Expr>
Result<Program> trace_score_mod(F&& score_mod) {
  ProgramBuilder builder(ProgramKind::kScoreMod);
  const ProgramBuilder::Scope scope(builder);
  const Expr result = score_mod(builder.input(Op::k_score), builder.input(Op::k_b), builder.input(Op::k_h),
                                builder.input(Op::k_q), builder.input(Op::k_kv));
  return builder.finish(result);
}

template <typename F>
  requires std::invocable<F, Expr, Expr, Expr, Expr>
Result<Program> trace_mask_mod(F&& mask_mod) {
  ProgramBuilder builder(ProgramKind::kMaskMod);
  const ProgramBuilder::Scope scope(builder);
  const Expr result =
      mask_mod(builder.input(Op::k_b), builder.input(Op::k_h), builder.input(Op::k_q), builder.input(Op::k_kv));
  return builder.finish(result);
}

}  // namespace flashlift

#pragma GCC visibility pop
