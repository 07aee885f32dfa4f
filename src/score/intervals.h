// Evaluates a score program over boxes of the score plane: the result contains all of its values there.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "flashlift/program.h"
#include "flashlift/tensor.h"
#include "score/capture_bounds.h"
#include "score/interval.h"

namespace flashlift::score {

// Ranges of the coordinates; both bounds are included.
struct Range {
  int64_t lo = 0;
  int64_t hi = 0;
};
struct Box {
  Range b;
  Range h;
  Range q;
  Range kv;
};

enum class Truth : uint8_t { kFalse, kTrue, kUnknown };
Truth truth(const Interval& x);

// A program compiled to a tape of interval operations for one call: lengths and captured tensors are bound, and
// everything that they determine is folded. An evaluation takes about ten nanoseconds for each operation and allocates
// nothing.
//
// Integers that are linear in the coordinates and in other values stay linear forms, so that equal terms cancel: `kv <=
// q` is one comparison of kv - q with 0, however it is written. A value becomes a form only if no step can wrap around
// on the whole domain.
class IntervalProgram {
 public:
  struct Domain {
    int64_t batch = 1;
    int64_t heads = 1;
    int64_t q_len = 1;
    int64_t kv_len = 1;
    // The range of the score input. It is finite, so that score + (-inf) is -inf, and far enough from overflow that
    // adding a finite bias does not seem to overflow.
    Interval score = Interval::real(-1e30, 1e30);
  };

  IntervalProgram() = default;
  IntervalProgram(const Program& program, std::span<const TensorView> captures, const Domain& domain) {
    bind(program, captures, domain);
  }
  // `captures` are in the order of program.captures; their memory must outlive this object. Takes time linear in the
  // number of elements that the domain reaches of those captured tensors that one coordinate of the plane indexes, and
  // none for others.
  // Lengths, batch and heads are at least 1. May be called again, and reuses memory.
  void bind(const Program& program, std::span<const TensorView> captures, const Domain& domain);

  // The range of the result over a box within the domain. `scratch` grows to the necessary size once, and can be used
  // for other programs, too.
  Interval evaluate(const Box& box, std::vector<Interval>& scratch) const;
  // The size to which `scratch` grows.
  size_t scratch_size() const { return kInputSlots + tape_.instructions.size(); }

  // The result over the whole domain.
  Interval whole() const { return whole_; }
  // Whether it depends on this input (b, h, q or kv).
  bool depends_on(Op input) const;
  // Whether it searches captured tensors.
  bool searches() const;

  struct Term {
    uint32_t slot;
    int64_t coefficient;
  };
  // A captured tensor that is read at indices in slots: the part of it that the indices reach on the whole domain.
  struct Load {
    TensorView tensor;
    std::array<int64_t, kMaxRank> first{};  // where the part begins in the captured tensor
    std::array<uint32_t, kMaxRank> indices{};
    int bounds = -1;  // index into `bounds`, or -1
    Interval whole = {};
  };
  enum class Action : uint8_t { kConstant, kAffine, kCompareAffine, kLoad, kSearch, kApply };
  struct Instruction {
    Action action = Action::kConstant;
    Op op = Op::k_constant;
    Type type = Type::kI1;
    Type operand_type = Type::kI1;
    std::array<uint32_t, 3> operands{};  // kApply
    uint32_t first_term = 0;             // kAffine and kCompareAffine: constant + sum of terms (compared with 0)
    uint32_t term_count = 0;
    int64_t constant = 0;
    uint32_t load = 0;    // kLoad and kSearch
    Interval value = {};  // kConstant
  };
  // Instruction i writes slot kInputSlots + i; the slots before are b, h, q, kv and the score.
  struct Tape {
    std::vector<Instruction> instructions;
    std::vector<Term> terms;
    std::vector<Load> loads;
    std::vector<LineBounds> bounds;  // the first `bounds_used` are in use; the others keep their memory
    size_t bounds_used = 0;
    uint32_t result = 0;
  };
  static constexpr uint32_t kInputSlots = 5;

 private:
  Tape tape_;
  Interval score_;
  Interval whole_;
  uint32_t inputs_used_ = 0;  // bit set of input slots
};

}  // namespace flashlift::score
