#include "stablehlo/lift/plane.h"

#include "stablehlo/lift/layout.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// The 16-bit type of the queries, keys and values, if they all have the same one. If probabilities are multiplied with
// values of this type, or queries with keys of this type, it is also that of the other operands that the module rounds
// to it and then widens again, as after rotary embeddings in f32, or values of an 8-bit cache.
std::optional<DType> half_type(const Pair& pair, const AttemptOptions& options) {
  const bool knows_values = options.gradient != GradientUse::kAlone;
  const mlir::Value q = pair.first->getOperand(0), k = pair.first->getOperand(1);
  const mlir::Value values = pair.second->getOperand(1 - pair.side);
  const auto of_values = half_type_of(values, Conversions::kExact);
  if (knows_values && of_values == dtype(values.getType())) {
    const auto half = half_type_of(q, Conversions::kOfRounded);
    return half == half_type_of(k, Conversions::kOfRounded) && half == of_values ? half : std::nullopt;
  }
  const auto half = half_type_of(q, Conversions::kExact);
  const bool are_read_so = half == dtype(q.getType()) && half == dtype(k.getType());
  const bool is_shared =
      half == half_type_of(k, Conversions::kExact) &&
      (!knows_values || half == half_type_of(values, are_read_so ? Conversions::kOfRounded : Conversions::kExact));
  return is_shared ? half : std::nullopt;
}

}  // namespace

Plane::Plane(const Pair& products, const AttemptOptions& wanted)
    : pair(products), options(wanted), half(half_type(products, wanted)), depends(products.first, outputs()) {}

std::vector<mlir::Operation*> Plane::outputs() const {
  std::vector<mlir::Operation*> found;
  if (options.gradient == GradientUse::kBesideOutput) {
    found = divided;
    found.push_back(pair.second);
  }
  return found;
}

Proof Plane::check_atoms_left(size_t count) const {
  return static_cast<size_t>(next_atom) + count <= static_cast<size_t>(kFirstBound)
             ? Proof()
             : refuse<Reason::kTooManyOperandDimensions>();
}

int Plane::new_atom(int64_t size) {
  sizes[static_cast<size_t>(next_atom)] = size;
  return next_atom++;
}

void Plane::request_split(const SplitRequest& request) {
  if (request.atom > kKeyAtom && request.atom < kFirstBound && origin[static_cast<size_t>(request.atom)].first >= 0) {
    const auto [dim, digit] = origin[static_cast<size_t>(request.atom)];
    wanted_split = {.dim = static_cast<size_t>(dim), .digit = digit, .inner = request.inner_size};
  }
}

}  // namespace flashlift::stablehlo
