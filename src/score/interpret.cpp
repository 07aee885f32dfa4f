#include "score/interpret.h"

#include <algorithm>
#include <array>
#include <bit>

#include "support/half.h"

namespace flashlift::score {
namespace {

int32_t coordinate(Op op, const Coordinates& at) {
  if (op == Op::k_b) {
    return at.b;
  }
  if (op == Op::k_h) {
    return at.h;
  }
  if (op == Op::k_q) {
    return at.q;
  }
  if (op == Op::k_kv) {
    return at.kv;
  }
  return op == Op::k_q_len ? at.q_len : at.kv_len;
}

}  // namespace

Element load_element(const TensorView& tensor, std::span<const int64_t> indices) {
  int64_t offset = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.sizes[i] == 0) {
      return {};  // an empty tensor reads as 0
    }
    offset += std::clamp<int64_t>(indices[i], 0, tensor.sizes[i] - 1) * tensor.strides[i];
  }
  const auto read = [&]<typename T>(T) { return static_cast<const T*>(tensor.data)[offset]; };
  switch (tensor.dtype) {
    case DType::kBool:
      return {.integer = read(uint8_t{}) != 0, .real = 0};
    case DType::kI8:
      return {.integer = read(int8_t{}), .real = 0};
    case DType::kU8:
      return {.integer = read(uint8_t{}), .real = 0};
    case DType::kI16:
      return {.integer = read(int16_t{}), .real = 0};
    case DType::kI32:
      return {.integer = read(int32_t{}), .real = 0};
    case DType::kU32:
      return {.integer = read(uint32_t{}), .real = 0};
    case DType::kI64:
      return {.integer = read(int64_t{}), .real = 0};
    case DType::kF16:
      return {.integer = 0, .real = f16_to_float(read(uint16_t{}))};
    case DType::kBF16:
      return {.integer = 0, .real = bf16_to_float(read(uint16_t{}))};
    case DType::kF32:
      return {.integer = 0, .real = read(float{})};
    case DType::kF64:  // floats of programs are f32
      return {.integer = 0, .real = static_cast<float>(read(double{}))};
  }
  return {};
}

int64_t search_element(const TensorView& tensor, int64_t x) {
  const int64_t size = std::max<int64_t>(tensor.sizes[0], 1);
  int64_t found = 0;
  for (auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(size))); step > 0; step /= 2) {
    const int64_t last = found + step - 1;
    found += last < size && load_element(tensor, {&last, 1}).integer <= x ? step : 0;
  }
  return found;
}

template <typename Real>
BasicInterpreter<Real>::BasicInterpreter(const Program& program, std::span<const TensorView> captures)
    : program_(program), captures_(captures), integers_(program.nodes.size()), reals_(program.nodes.size()) {}

template <typename Real>
Scalar<Real> BasicInterpreter<Real>::evaluate_node(const Node& node, Real score, const Coordinates& at) const {
  switch (info(node.op).rule) {
    case TypeRule::kInputF32:
      return {.i = 0, .f = score};
    case TypeRule::kInputI32:
      return {.i = coordinate(node.op, at), .f = 0};
    case TypeRule::kConstant:
      return {.i = node.payload,
              .f = node.type == Type::kF32 ? std::bit_cast<float>(static_cast<uint32_t>(node.payload)) : 0.0f};
    case TypeRule::kLoad: {
      std::array<int64_t, kMaxRank> indices{};
      for (size_t i = 0; i < node.operands.size(); ++i) {
        indices[i] = integers_[node.operands[i]];
      }
      const Element element = load_element(captures_[node.payload], {indices.data(), node.operands.size()});
      return {.i = element.integer, .f = static_cast<Real>(element.real)};
    }
    case TypeRule::kSearch:
      return {.i = search_element(captures_[node.payload], integers_[node.operands[0]]), .f = 0};
    case TypeRule::kNumeric:
    case TypeRule::kInteger:
    case TypeRule::kBits:
    case TypeRule::kFloat:
    case TypeRule::kCompare:
    case TypeRule::kCompareAny:
    case TypeRule::kPredicate:
    case TypeRule::kSelect:
    case TypeRule::kConvert:
    case TypeRule::kBitcast:
      break;
  }
  std::array<Scalar<Real>, 3> operands;
  for (size_t i = 0; i < node.operands.size(); ++i) {
    operands[i] = {.i = integers_[node.operands[i]], .f = reals_[node.operands[i]]};
  }
  const Type operand_type = program_.nodes[node.operands.back()].type;
  return apply<Real>(node.op, node.type, operand_type, {operands.data(), node.operands.size()});
}

template <typename Real>
void BasicInterpreter<Real>::evaluate(Real score, const Coordinates& at) {
  for (ValueId id = 0; id < program_.nodes.size(); ++id) {
    const Node& node = program_.nodes[id];
    const Scalar<Real> value = evaluate_node(node, score, at);
    integers_[id] = value.i;
    reals_[id] = value.f;
  }
}

template <typename Real>
Real BasicInterpreter<Real>::score_mod(Real score, const Coordinates& at) {
  evaluate(score, at);
  return reals_[program_.result];
}

template <typename Real>
bool BasicInterpreter<Real>::mask_mod(const Coordinates& at) {
  evaluate(0, at);
  return integers_[program_.result] != 0;
}

template class BasicInterpreter<float>;
template class BasicInterpreter<double>;

}  // namespace flashlift::score
