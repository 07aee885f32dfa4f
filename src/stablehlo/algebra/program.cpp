#include "stablehlo/algebra/program.h"

#include <map>
#include <optional>

#include "flashlift/builder.h"
#include "score/simplify.h"

namespace flashlift::stablehlo {
namespace {

class Emission {
 public:
  Emission(const SymArena& arena, const Roles& roles, const std::vector<int64_t>& sizes,
           const std::vector<LeafInfo>& leaves, ProgramBuilder& builder)
      : arena_(arena), sizes_(sizes), leaves_(leaves), builder_(builder) {
    place(roles.batch, Op::k_b);
    place(roles.heads(), Op::k_h);
    place(roles.query, Op::k_q);
    place({kKeyAtom}, Op::k_kv);
  }

  Expr emit(SymId id) {
    if (const auto found = done_.find(id); found != done_.end()) {
      return found->second;
    }
    const Expr value = emit_new(id);
    done_.emplace(id, value);
    return value;
  }

  bool failed() const { return failed_; }

 private:
  struct Place {
    Op coordinate = Op::k_b;
    int64_t stride = 1;     // of the atom within its coordinate
    bool is_major = false;  // the major-most digit
  };

  void place(const std::vector<int>& atoms, Op coordinate) {
    int64_t stride = 1;
    for (size_t i = atoms.size(); i-- > 0;) {
      places_[atoms[i]] = {.coordinate = coordinate, .stride = stride, .is_major = i == 0};
      stride *= sizes_[atoms[i]];
    }
    if (atoms.size() > 1) {
      digits_[coordinate] = atoms;
    }
  }

  Expr emit_atom(int atom) {
    const auto found = places_.find(atom);
    if (found == places_.end()) {
      failed_ = true;
      return Expr(0);
    }
    const Place& at = found->second;
    Expr value = builder_.input(at.coordinate);
    if (at.stride != 1) {
      value = floor_div(value, static_cast<int>(at.stride));
    }
    return at.is_major ? value : mod(value, static_cast<int>(sizes_[atom]));
  }

  // Simplifies h/4*4 + h%4 to h: a sum that contains all digits of a coordinate in their own proportions reads the
  // coordinate.
  std::optional<Expr> emit_coordinate_sum(SymId id) {
    std::map<int, int64_t> terms;
    int64_t constant = 0;
    int steps = 256;
    if (!read_linear(id, 1, terms, constant, steps)) {
      return std::nullopt;
    }
    for (const auto& [coordinate, atoms] : digits_) {
      const auto minor = terms.find(atoms.back());
      if (minor == terms.end()) {
        continue;
      }
      const int64_t factor = minor->second;
      bool whole = true;
      for (const int atom : atoms) {
        const auto term = terms.find(atom);
        whole = whole && term != terms.end() && term->second == factor * places_[atom].stride;
      }
      if (!whole) {
        continue;
      }
      Expr sum = builder_.input(coordinate) * static_cast<int>(factor);
      for (const int atom : atoms) {
        terms.erase(atom);
      }
      for (const auto& [atom, coefficient] : terms) {
        sum = sum + emit_atom(atom) * static_cast<int>(coefficient);
      }
      return sum + static_cast<int>(constant);
    }
    return std::nullopt;
  }

  // `steps` limits the number of parts that are read: formulas share parts, so that a sum may have far more terms than
  // operations.
  bool read_linear(SymId id, int64_t factor, std::map<int, int64_t>& terms, int64_t& constant, int& steps) const {
    if (--steps < 0) {
      return false;
    }
    const Sym& sym = arena_[id];
    if (sym.kind == SymKind::kAtom) {
      int64_t& term = terms[static_cast<int>(sym.payload)];
      return !__builtin_add_overflow(term, factor, &term);
    }
    if (sym.kind == SymKind::kConstant && sym.type == Type::kI32) {
      int64_t product = 0;
      return !__builtin_mul_overflow(factor, sym.payload, &product) &&
             !__builtin_add_overflow(constant, product, &constant);
    }
    if (arena_.is_op(id, Op::k_add)) {
      return read_linear(sym.args[0], factor, terms, constant, steps) &&
             read_linear(sym.args[1], factor, terms, constant, steps);
    }
    if (arena_.is_op(id, Op::k_mul) && arena_.is_constant(sym.args[1])) {
      int64_t product = 0;
      return !__builtin_mul_overflow(factor, arena_[sym.args[1]].payload, &product) &&
             read_linear(sym.args[0], product, terms, constant, steps);
    }
    return false;
  }

  Expr emit_new(SymId id) {
    const Sym& sym = arena_[id];
    switch (sym.kind) {
      case SymKind::kConstant:
        return builder_.constant(sym.type, sym.payload);
      case SymKind::kAtom:
        return emit_atom(static_cast<int>(sym.payload));
      case SymKind::kScore:
        return builder_.input(Op::k_score);
      case SymKind::kLoad: {
        std::vector<Expr> indices;
        for (const SymId arg : sym.args) {
          indices.push_back(emit(arg));
        }
        return builder_.load(leaves_[static_cast<size_t>(sym.payload)].capture, indices);
      }
      case SymKind::kOp: {
        if (sym.type == Type::kI32 && !digits_.empty()) {
          if (const auto sum = emit_coordinate_sum(id)) {
            return *sum;
          }
        }
        std::vector<Expr> args;
        for (const SymId arg : sym.args) {
          args.push_back(emit(arg));
        }
        return builder_.apply(sym.op, args);
      }
      case SymKind::kReduce:
        failed_ = true;
        return Expr(0.0f);
    }
    return Expr(0.0f);
  }

  const SymArena& arena_;
  const std::vector<int64_t>& sizes_;
  const std::vector<LeafInfo>& leaves_;
  ProgramBuilder& builder_;
  std::map<int, Place> places_;
  std::map<Op, std::vector<int>> digits_;  // for each coordinate that consists of several atoms, these
  std::map<SymId, Expr> done_;
  bool failed_ = false;
};

// If this use multiplies the score by a constant, returns that constant.
std::optional<float> factor_of_use(const SymArena& arena, const Sym& user, SymId score) {
  if (user.op != Op::k_mul && user.op != Op::k_div) {
    return std::nullopt;
  }
  const SymId other = user.args[0] == score ? user.args[1] : user.args[0];
  if (!arena.is_constant(other) || (user.op == Op::k_div && user.args[0] != score)) {
    return std::nullopt;
  }
  const float constant = arena.f32_value(other);
  return user.op == Op::k_mul ? constant : 1.0f / constant;
}

}  // namespace

Outcome<Program> ProgramEmitter::score_mod(SymId score) const {
  ProgramBuilder builder(ProgramKind::kScoreMod);
  const ProgramBuilder::Scope scope(builder);
  Emission emission(arena_, roles_, sizes_, leaves_, builder);
  const Expr result = emission.emit(score);
  if (emission.failed()) {
    return refuse<Reason::kReducesInProgram>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Program program, builder.finish(result));
  return score::simplify(program);
}

Outcome<Program> ProgramEmitter::mask_mod(const std::vector<SymId>& guards) const {
  ProgramBuilder builder(ProgramKind::kMaskMod);
  const ProgramBuilder::Scope scope(builder);
  Emission emission(arena_, roles_, sizes_, leaves_, builder);
  Expr keep = true;
  for (const SymId guard : guards) {
    keep = keep && emission.emit(guard);
  }
  if (emission.failed()) {
    return refuse<Reason::kReducesInProgram>();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Program program, builder.finish(keep));
  return score::simplify(program);
}

std::vector<SymId> loads_of(const SymArena& arena, SymId formula) {
  std::vector<SymId> loads;
  any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    if (arena[id].kind == SymKind::kLoad) {
      loads.push_back(id);
    }
    arena.push_args(id, next);
    return false;
  });
  return loads;
}

float extract_scale(SymArena& arena, SymId& formula) {
  // Finds the uses of the score in the formula, also in the indices of its loads.
  std::vector<SymId> users;
  SymId score = kNoSym;
  const bool reduces = any_part({formula}, [&](SymId id, std::vector<SymId>& next) {
    if (!arena[id].has_score) {
      return false;
    }
    if (arena[id].kind == SymKind::kScore) {
      score = id;
    }
    for (const SymId arg : arena[id].args) {
      if (arena[arg].kind == SymKind::kScore) {
        users.push_back(id);
      }
    }
    arena.push_args(id, next);
    return arena[id].kind == SymKind::kReduce;
  });
  if (reduces) {
    return 1.0f;  // replace() does not change reductions
  }
  std::optional<float> factor;
  for (const SymId user : users) {
    const auto here = factor_of_use(arena, arena[user], score);
    if (!here || (factor && *factor != *here)) {
      return 1.0f;
    }
    factor = here;
  }
  if (!factor) {
    return 1.0f;
  }
  for (const SymId user : users) {
    formula = arena.replace(formula, user, score);
  }
  return *factor * extract_scale(arena, formula);
}

}  // namespace flashlift::stablehlo
