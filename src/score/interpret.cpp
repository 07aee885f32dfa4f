#include "score/interpret.h"

#include <algorithm>
#include <array>
#include <bit>

#include "score/scalar.h"
#include "support/half.h"

namespace flashlift::score {

Element load_element(const TensorView& tensor, std::span<const int64_t> indices) {
  int64_t offset = 0;
  for (int i = 0; i < tensor.rank; ++i) {
    if (tensor.sizes[i] == 0) {
      return {};  // nothing to read: 0 of any type
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
    case DType::kF64:  // the language's floats are f32
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
void BasicInterpreter<Real>::evaluate(Real score, const Coordinates& at) {
  for (ValueId id = 0; id < program_.nodes.size(); ++id) {
    const Node& node = program_.nodes[id];
    Scalar<Real> value;
    switch (node.op) {
      case Op::k_score:
        value.f = score;
        break;
      case Op::k_b:
        value.i = at.b;
        break;
      case Op::k_h:
        value.i = at.h;
        break;
      case Op::k_q:
        value.i = at.q;
        break;
      case Op::k_kv:
        value.i = at.kv;
        break;
      case Op::k_q_len:
        value.i = at.q_len;
        break;
      case Op::k_kv_len:
        value.i = at.kv_len;
        break;
      case Op::k_constant:
        value.i = node.payload;
        value.f = node.type == Type::kF32 ? std::bit_cast<float>(static_cast<uint32_t>(node.payload)) : 0.0f;
        break;
      case Op::k_load: {
        std::array<int64_t, kMaxRank> indices{};
        for (size_t i = 0; i < node.operands.size(); ++i) {
          indices[i] = integers_[node.operands[i]];
        }
        const Element element = load_element(captures_[node.payload], {indices.data(), node.operands.size()});
        value = {.i = element.integer, .f = static_cast<Real>(element.real)};
        break;
      }
      case Op::k_search:
        value.i = search_element(captures_[node.payload], integers_[node.operands[0]]);
        break;
      default: {
        std::array<Scalar<Real>, 3> operands;
        for (size_t i = 0; i < node.operands.size(); ++i) {
          operands[i] = {.i = integers_[node.operands[i]], .f = reals_[node.operands[i]]};
        }
        const Type operand_type = program_.nodes[node.operands.back()].type;
        value = apply<Real>(node.op, node.type, operand_type, {operands.data(), node.operands.size()});
      }
    }
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
