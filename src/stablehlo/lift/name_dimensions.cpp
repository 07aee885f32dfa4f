// Stage 4: finds which dimensions of queries, keys, values and output are batch, head, query, key and depth.
#include <algorithm>
#include <bit>

#include "stablehlo/lift/products.h"
#include "stablehlo/lift/stages.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

AtomSet set_of(const std::vector<int>& atoms) {
  AtomSet set = 0;
  for (const int atom : atoms) {
    set |= atom_bit(atom);
  }
  return set;
}

// If some operands are 16-bit and others wide, for example because only the values are converted to f32, reads the wide
// ones before their conversion, queries and keys also before a constant factor. Keys that are repeated after it are
// read before they are repeated: the call's gradient is not summed over heads that share them.
void read_before_widening(std::vector<Sources>& sources, std::vector<PlacedTensor>& picked) {
  const auto is_wide = [](PlacedTensor& tensor) { return dtype(tensor.value.getType()) == DType::kF32; };
  const auto half = std::find_if_not(picked.begin(), picked.end(), is_wide);
  if (half == picked.end()) {
    return;
  }
  const auto type = dtype(half->value.getType());
  for (size_t i = 0; i < picked.size(); ++i) {
    const auto elements = [](const PlacedTensor& tensor) { return static_tensor(tensor.value).getNumElements(); };
    const int64_t count = elements(picked[i]);
    const bool is_read_wide = is_wide(picked[i]);
    for (PlacedTensor& source : sources[i].tensors) {
      if (is_read_wide && dtype(source.value.getType()) == type && (is_wide(picked[i]) || elements(source) == count)) {
        picked[i] = source;
      }
    }
  }
}

// The most distant source of each of q, k and v, so that all have the same dtype.
Outcome<std::vector<PlacedTensor>> pick_sources(Plane& plane, const Operands& operands, Conversions passed) {
  std::vector<PlacedTensor> picked;
  std::vector<Sources> all;
  for (const ReadTensor* operand : {&operands.q, &operands.k, &operands.v}) {
    Sources sources = follow_operand(operand->value, operand->indices, plane.sizes, passed);
    plane.request_split(sources.split);
    if (plane.wanted_split) {
      return refuse<Reason::kSplitDimension>();
    }
    if (operand->value == operands.v.value && operand->indices == operands.v.indices) {
      // A constant factor of the values is not part of the scores' scale: such sources are left out.
      std::erase_if(sources.tensors, [](const PlacedTensor& tensor) { return tensor.scale != 1.0f; });
    }
    if (sources.tensors.empty()) {
      return refuse<Reason::kNotStrided>();
    }
    // A gradient is that of the operand itself; its sources may be scaled or repeated.
    picked.push_back(plane.options.gradient != GradientUse::kNone ? sources.tensors.front() : sources.tensors.back());
    all.push_back(std::move(sources));
  }
  if (plane.options.gradient != GradientUse::kNone) {
    read_before_widening(all, picked);
  }
  const auto type = dtype(picked[0].value.getType());
  const bool supported = type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
  for (const PlacedTensor& tensor : picked) {
    if (!supported || dtype(tensor.value.getType()) != type) {
      return refuse<Reason::kElementTypes>();
    }
  }
  return picked;
}

// For each dimension of size 1 that only the queries of a product have, the atom of the dimension that follows it; -1
// if none does.
std::vector<int> ones_of_queries(mlir::Operation* product, const ReadTensor& q) {
  const unsigned side = product->getOperand(0) == q.value ? 0 : 1;
  std::vector<int> found;
  for (const int64_t d : operand_dims(product, side).free) {
    if (!q.indices[static_cast<size_t>(d)].is_constant()) {
      continue;
    }
    const auto next =
        std::find_if_not(q.indices.begin() + d, q.indices.end(), [](const Affine& i) { return i.is_constant(); });
    found.push_back(next == q.indices.end()
                        ? -1
                        : std::max_element(next->terms.begin(), next->terms.end(), [](const auto& x, const auto& y) {
                            return x.second < y.second;
                          })->first);
  }
  return found;
}

AtomUse use_of_atoms(const Plane& plane, const Probabilities& probabilities, const Operands& operands,
                     const Softmax& softmax, const Dimensions& found) {
  const AtomSet not_plane =
      set_of(operands.depth) | set_of(operands.value_depth) | atom_bit(kKeyAtom) | set_of(probabilities.key_digits);
  AtomUse use;
  use.in_q = set_of(found.q.order()) & ~not_plane;
  use.in_k = set_of(found.k.order()) & ~not_plane;
  use.in_v = set_of(found.v.order()) & ~not_plane;
  for (const int atom : found.q.order()) {
    if ((not_plane & atom_bit(atom)) == 0) {
      use.q_order.push_back(atom);
    }
  }
  for (const Index& index : probabilities.indices) {
    for (const auto& term : index.affine.terms) {
      if ((not_plane & atom_bit(term.first)) == 0) {
        use.plane.push_back(term.first);
      }
    }
  }
  for (const SymId guard : softmax.guards) {
    use.in_programs |= plane.arena.depends_on(guard, kKeyAtom) ? plane.arena[guard].atoms : 0;
  }
  for (const SymId logits : softmax.sinks) {
    use.in_sinks |= plane.arena[logits].atoms & ~not_plane;
  }
  use.q_ones = ones_of_queries(plane.pair.first, operands.q);
  return use;
}

// Of the atoms that only the queries have, those that gradients of keys or values keep: products that sum over queries,
// but not over these. Each call of jax.vmap over the queries has such gradients of its own.
AtomSet kept_by_gradients(const Plane& plane, const ScoreUses& uses, AtomSet only_q) {
  AtomSet kept = 0;
  for (const Exit& exit : uses.exits) {
    const OperandDims dims = operand_dims(exit.product, exit.side);
    AtomSet summed = 0;
    AtomSet others = 0;
    bool sums_over_keys = false;
    for (size_t d = 0; d < exit.plane_indices.size(); ++d) {
      const Affine& index = exit.plane_indices[d].affine;
      const bool is_summed = llvm::is_contained(dims.contract, static_cast<int64_t>(d));
      sums_over_keys = sums_over_keys || (is_summed && plane.evaluator->runs_over_keys(index));
      for (const auto& term : index.terms) {
        (is_summed ? summed : others) |= atom_bit(term.first);
      }
    }
    if (!sums_over_keys && (summed & only_q) != 0) {
      kept |= others & only_q;
    }
  }
  return kept;
}

// Whether the module computes scores, probabilities and the output in f32, although its operands hold 16-bit numbers.
bool rounds_nothing(const Plane& plane) {
  const auto is_f32 = [](mlir::Value value) { return dtype(value.getType()) == DType::kF32; };
  return plane.half && plane.evaluator->unrounded().empty() && is_f32(plane.pair.first->getResult(0)) &&
         is_f32(plane.pair.second->getOperand(0)) && is_f32(plane.pair.second->getOperand(1));
}

}  // namespace

Outcome<Dimensions> name_dimensions(Plane& plane, const Probabilities& probabilities, const Operands& operands,
                                    const Match& match) {
  auto picked = pick_sources(plane, operands, plane.half ? Conversions::kOfRounded : Conversions::kExact);
  if (!picked.ok() && !plane.wanted_split) {
    picked = pick_sources(plane, operands, Conversions::kNone);
  }
  if (!picked.ok()) {
    return picked.error();
  }
  Dimensions found{.q = (*picked)[0], .k = (*picked)[1], .v = (*picked)[2], .out = match.out};
  while (auto next = found.out ? follow_result(*found.out, plane.sizes, plane.half) : std::nullopt) {
    if (rounds_nothing(plane) && dtype(next->value.getType()) != dtype(found.out->value.getType())) {
      break;  // a call with this output would also round the probabilities
    }
    found.out = std::move(next);
  }
  // A product of the queries with a table of key positions alone is a bias, not a product of scores.
  for (const PlacedTensor* tensor : {&found.k, &found.v}) {
    int64_t keys = 1;
    for (const int atom : tensor->order()) {
      keys *= plane.evaluator->runs_over_keys(affine_atom(atom)) ? plane.sizes[static_cast<size_t>(atom)] : 1;
    }
    if (keys != plane.sizes[kKeyAtom]) {
      return refuse<Reason::kRepeatedKeys>();
    }
  }
  AtomUse use = use_of_atoms(plane, probabilities, operands, match.softmax, found);
  const AtomSet only_q = use.in_q & ~use.in_k & ~use.in_v;
  if (plane.options.gradient != GradientUse::kNone && std::popcount(only_q) > 1) {
    found.uses = operands.uses ? operands.uses : read_score_uses(plane, probabilities, &match.softmax);
    use.in_k |= kept_by_gradients(plane, *found.uses, only_q);
  }
  FLASHLIFT_ASSIGN_OR_RETURN(found.roles, assign_roles(use, plane.sizes));
  found.roles.key = probabilities.key_digits;
  FLASHLIFT_ASSIGN_OR_RETURN(found.q_view, operand_view(found.q, found.roles, operands.depth, plane.sizes, false));
  FLASHLIFT_ASSIGN_OR_RETURN(found.k_view, operand_view(found.k, found.roles, operands.depth, plane.sizes, true));
  FLASHLIFT_ASSIGN_OR_RETURN(found.v_view, operand_view(found.v, found.roles, operands.value_depth, plane.sizes, true));
  if (found.out) {
    FLASHLIFT_ASSIGN_OR_RETURN(found.out_view, result_view(*found.out, found.roles, operands.value_depth, plane.sizes));
  }
  return found;
}

}  // namespace flashlift::stablehlo
