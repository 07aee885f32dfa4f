// Scalar formulas of one place of the score plane: what the tensor operations between the two products of an
// attention compute for one (batch, head, query, key), with index arithmetic made explicit.
//
// Formulas are hash-consed: two that are built alike have the same SymId, so equality of formulas is equality of ids.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <initializer_list>
#include <map>
#include <set>
#include <tuple>
#include <vector>

#include "flashlift/program.h"

namespace flashlift::stablehlo {

using SymId = int32_t;
inline constexpr SymId kNoSym = -1;

enum class SymKind : uint8_t {
  kConstant,  // payload: as Node::payload
  kAtom,      // an index variable, i32; payload: its number
  kScore,     // the element of the first product at this place, f32
  kLoad,      // an element of a tensor; payload: its number among the leaves; args: i32 or i64 indices
  kOp,        // args: operands
  kReduce,    // over the pieces of a range; args: one body a piece; see ReducePiece
};

// Index variables. Atom 0 is the key; those below kFirstBound are dimensions of the score plane and of values; the rest
// are bound by a reduction that is not over keys.
inline constexpr int kKeyAtom = 0;
inline constexpr int kFirstBound = 40;
inline constexpr int kMaxAtoms = 64;
using AtomSet = uint64_t;
constexpr AtomSet atom_bit(int atom) { return AtomSet{1} << atom; }

enum class ReduceKind : uint8_t { kAdd, kMaximum, kMinimum, kAnd, kOr };

// A reduction's range falls into pieces where a concatenation put them side by side. Over a piece of keys the body
// reads the bound variable as atom 0; other pieces have a bound atom of their own, or none if they have size 1.
struct ReducePiece {
  SymId body = kNoSym;
  int64_t size = 1;
  int atom = -1;  // kKeyAtom, a bound atom, or -1
};

struct Sym {
  SymKind kind = SymKind::kConstant;
  Op op = Op::k_constant;  // kOp
  Type type = Type::kF32;
  std::vector<SymId> args;
  int64_t payload = 0;
  std::vector<int64_t> spec;  // kReduce: kind, then size and atom of each piece
  AtomSet atoms = 0;          // free index variables
  bool has_score = false;
};

class SymArena {
 public:
  // The reference stays valid while formulas are added.
  const Sym& operator[](SymId id) const { return syms_[id]; }

  SymId constant(Type type, int64_t payload);
  SymId f32(float value);
  SymId i32(int64_t value);
  SymId boolean(bool value) { return constant(Type::kI1, value ? 1 : 0); }
  SymId atom(int number);
  SymId score(AtomSet atoms);
  SymId load(int64_t leaf, Type type, std::vector<SymId> indices);
  // Folds constants and applies the identities that make spellings of a mask alike.
  SymId op(Op op, std::vector<SymId> args);
  SymId convert(SymId value, Type type);
  SymId reduce(ReduceKind kind, const std::vector<ReducePiece>& pieces);

  ReduceKind reduce_kind(SymId id) const { return static_cast<ReduceKind>(syms_[id].spec[0]); }
  std::vector<ReducePiece> pieces(SymId id) const;

  bool is_constant(SymId id) const { return syms_[id].kind == SymKind::kConstant; }
  bool is_f32(SymId id, float value) const;
  bool is_op(SymId id, Op op) const { return syms_[id].kind == SymKind::kOp && syms_[id].op == op; }
  float f32_value(SymId id) const;  // of an f32 constant
  bool depends_on(SymId id, int atom) const { return (syms_[id].atoms & atom_bit(atom)) != 0; }
  // Puts what a formula is made of on a stack.
  void push_args(SymId id, std::vector<SymId>& stack) const {
    stack.insert(stack.end(), syms_[id].args.begin(), syms_[id].args.end());
  }

  // The formula with each occurrence of `from` replaced, in indices of loads too but not inside reductions, and
  // simplified again.
  SymId replace(SymId id, SymId from, SymId to);
  // The formula where values are known: as above, and again where simplifying gives a known part.
  SymId replace_known(SymId id, const std::map<SymId, SymId>& known);
  // How many parts of formulas both have looked at so far.
  int64_t replaced_parts() const { return replaced_parts_; }

 private:
  SymId intern(Sym sym);
  SymId fold(Op op, Type type, const std::vector<SymId>& args);
  // A simpler formula that equals this one; kNoSym if there is none.
  SymId identity(Op op, Type type, const std::vector<SymId>& args);
  SymId logical_identity(Op op, Type type, SymId x, SymId y);
  SymId select_identity(Type type, SymId x, SymId y, SymId z);
  SymId exp_identity(SymId x);
  SymId pow_identity(SymId x, SymId y);
  SymId push_into_select(Op op, const std::vector<SymId>& args);
  SymId replace_memo(SymId id, const std::map<SymId, SymId>& known, bool in_results, std::map<SymId, SymId>& memo);

  std::deque<Sym> syms_;  // not a vector, which moves its elements as it grows
  std::map<std::tuple<SymKind, Op, Type, int64_t, std::vector<SymId>, std::vector<int64_t>>, SymId> existing_;
  int64_t replaced_parts_ = 0;
};

// Whether is_wanted(id, stack) returns true for a part of the formulas on the stack. It is called once per part, since
// formulas share parts, the last one on the stack first, and pushes the parts to visit next.
template <typename IsWanted>
bool any_part(std::vector<SymId> stack, const IsWanted& is_wanted) {
  std::set<SymId> seen;
  while (!stack.empty()) {
    const SymId id = stack.back();
    stack.pop_back();
    if (seen.insert(id).second && is_wanted(id, stack)) {
      return true;
    }
  }
  return false;
}

// Splits operations of these kinds into terms, for example x + y + z into x, y and z, from left to right, until
// `is_wanted` returns true for a term. Returns whether it did. A formula with few operations may have very many terms,
// but not many different ones.
template <typename IsWanted>
bool any_term(const SymArena& arena, SymId formula, std::initializer_list<Op> ops, const IsWanted& is_wanted) {
  return any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    if (std::none_of(ops.begin(), ops.end(), [&](Op op) { return arena.is_op(id, op); })) {
      return is_wanted(id);
    }
    next.insert(next.end(), arena[id].args.rbegin(), arena[id].args.rend());
    return false;
  });
}

}  // namespace flashlift::stablehlo
