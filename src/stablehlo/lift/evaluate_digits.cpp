// Keys that span several dimensions, for example of an image: splits the key's index into digits, and joins them again.
#include "stablehlo/lift/evaluate.h"

namespace flashlift::stablehlo {

bool Evaluator::runs_over_keys(const Affine& index) const {
  for (const auto& term : index.terms) {
    if (is_of_key(term.first)) {
      return true;
    }
  }
  return false;
}

std::vector<int> Evaluator::smallest_key_digits(int atom) const {
  std::vector<int> smallest;
  for (int part = kFirstBound; part < next_bound_; ++part) {  // of two digits, the outer one comes first
    if (digits_[static_cast<size_t>(part)].of == atom) {
      const std::vector<int> inside = smallest_key_digits(part);
      smallest.insert(smallest.end(), inside.begin(), inside.end());
    }
  }
  return smallest.empty() ? std::vector<int>{atom} : smallest;
}

SymId Evaluator::atom_formula(int atom) {
  const Digit& digit = digits_[static_cast<size_t>(atom)];
  if (digit.of < 0) {
    return arena_.atom(atom);
  }
  return arena_.op(digit.is_outer ? Op::k_floor_div : Op::k_mod,
                   {atom_formula(digit.of), arena_.constant(Type::kI32, digit.inner)});
}

// Replaces outer * inner_size + inner by the index that both are digits of.
Affine Evaluator::with_digits_joined(Affine index) const {
  const auto coefficient_of = [&](int atom) {
    for (const auto& term : index.terms) {
      if (term.first == atom) {
        return term.second;
      }
    }
    return int64_t{0};
  };
  for (int inner = next_bound_; inner-- > kFirstBound;) {  // digits of a digit come after it
    const Digit& digit = digits_[static_cast<size_t>(inner)];
    const int outer = inner - 1;
    const int64_t factor = coefficient_of(inner);
    if (digit.of < 0 || digit.is_outer || factor == 0 || coefficient_of(outer) != factor * digit.inner) {
      continue;
    }
    index = affine_sum(index, affine_product(affine_atom(inner), -factor));
    index = affine_sum(index, affine_product(affine_atom(outer), -factor * digit.inner));
    index = affine_sum(index, affine_product(affine_atom(digit.of), factor));
  }
  return index;
}

std::optional<Affine> Evaluator::with_atom_split(const Affine& index, const SplitRequest& request) {
  int outer = -1;
  for (int atom = kFirstBound; atom < next_bound_; ++atom) {
    const Digit& digit = digits_[static_cast<size_t>(atom)];
    if (digit.of == request.atom) {
      if (digit.inner != request.inner_size) {
        return std::nullopt;  // already split differently: the two splits would not be recognised as the same keys
      }
      outer = outer < 0 ? atom : outer;
    }
  }
  if (outer < 0) {
    if (next_bound_ + 2 > kMaxAtoms) {
      return std::nullopt;
    }
    outer = next_bound_;
    next_bound_ += 2;
    for (const int atom : {outer, outer + 1}) {
      const bool is_outer = atom == outer;
      digits_[static_cast<size_t>(atom)] = {.of = request.atom, .inner = request.inner_size, .is_outer = is_outer};
      atom_sizes_[static_cast<size_t>(atom)] =
          is_outer ? atom_sizes_[static_cast<size_t>(request.atom)] / request.inner_size : request.inner_size;
    }
  }
  int64_t factor = 0;
  for (const auto& term : index.terms) {
    factor = term.first == request.atom ? term.second : factor;
  }
  Affine split = affine_sum(index, affine_product(affine_atom(request.atom), -factor));
  split = affine_sum(split, affine_product(affine_atom(outer), factor * request.inner_size));
  return affine_sum(split, affine_product(affine_atom(outer + 1), factor));
}

Delinearized Evaluator::delinearize_splitting_keys(Affine offset, const std::vector<int64_t>& dims) {
  offset = with_digits_joined(std::move(offset));
  while (true) {
    Delinearized result = delinearize(offset, dims, atom_sizes_);
    const int atom = result.request.atom;
    if (result.indices || atom < 0 || !is_of_key(atom)) {
      return result;
    }
    auto split = with_atom_split(offset, result.request);
    if (!split) {
      return {};
    }
    offset = *std::move(split);
  }
}

std::optional<std::vector<Affine>> Evaluator::key_digits(const std::vector<int64_t>& sizes) {
  return delinearize_splitting_keys(affine_atom(kKeyAtom), sizes).indices;
}

}  // namespace flashlift::stablehlo
