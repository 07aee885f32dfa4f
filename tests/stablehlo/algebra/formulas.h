// Formulas of an attention for tests: what a module's tensor operations compute at one place of the plane.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "stablehlo/algebra/softmax.h"
#include "stablehlo/algebra/symbol.h"

namespace flashlift::stablehlo {

class Formulas : public testing::Test {
 protected:
  static constexpr int kRowAtom = 1;
  static constexpr int64_t kKeys = 7;
  static constexpr int64_t kRows = 5;

  static std::vector<int64_t> sizes() {
    std::vector<int64_t> sizes(kMaxAtoms, 1);
    sizes[kKeyAtom] = kKeys;
    sizes[kRowAtom] = kRows;
    return sizes;
  }
  SymId op(Op op, std::vector<SymId> args) { return arena_.op(op, std::move(args)); }
  SymId over_keys(ReduceKind kind, SymId body) {
    return arena_.reduce(kind, {{.body = body, .size = kKeys, .atom = kKeyAtom}});
  }
  SymId sum(SymId body) { return over_keys(ReduceKind::kAdd, body); }
  SymId maximum(SymId body) { return over_keys(ReduceKind::kMaximum, body); }
  // A tensor with an element for each place of the plane, for each row, or for each key.
  SymId plane(int64_t leaf, Type type = Type::kF32) { return arena_.load(leaf, type, {row_, key_}); }
  SymId of_row(int64_t leaf, Type type = Type::kF32) { return arena_.load(leaf, type, {row_}); }
  SymId of_key(int64_t leaf, Type type = Type::kF32) { return arena_.load(leaf, type, {key_}); }

  // Softmax as libraries write it: e^(s - max s) / sum e^(s - max s).
  SymId softmax_of(SymId score) {
    const SymId e = op(Op::k_exp, {op(Op::k_sub, {score, maximum(score)})});
    return op(Op::k_div, {e, sum(e)});
  }
  Outcome<Softmax> match(SymId probability) { return match_softmax(arena_, as_product(arena_, probability)); }
  SymId masked(SymId condition, float otherwise) {
    return op(Op::k_select, {condition, score_, arena_.f32(otherwise)});
  }

  SymArena arena_;
  SymId key_ = arena_.atom(kKeyAtom);
  SymId row_ = arena_.atom(kRowAtom);
  SymId score_ = arena_.score(atom_bit(kKeyAtom) | atom_bit(kRowAtom));
  SymId causal_ = arena_.op(Op::k_le, {key_, row_});
};

}  // namespace flashlift::stablehlo
