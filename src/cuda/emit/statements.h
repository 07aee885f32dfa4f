// The statements of a program's functions, value by value.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "cuda/emit/capture_loads.h"
#include "cuda/emit/motion.h"
#include "flashlift/problem.h"
#include "score/derivative.h"

namespace flashlift::cuda {

const char* type_name(Type type);
const char* element_name(DType dtype);  // the type of kernels/common/captures.cuh
std::string float_text(float value);    // a constant, by its bits

// A last multiplication by a positive constant, which the softmax can take over: it multiplies anyway. 16-bit problems
// only, which do not see the last bit.
struct LastFactor {
  ValueId inner = 0;
  float factor = 1.0f;
};
LastFactor last_factor(const Problem& problem, const Program& program);

// Which function a program's values are computed in.
enum class Part : uint8_t {
  kWhole,     // score_mod or mask_mod
  kInside,    // score_mod where loads that move with the keys are known to be inside their tensors
  kZeros,     // score_mod where masks that are added are known to be zeros
  kInterval,  // the program over intervals
  kRow,       // searches that depend on the query alone
  kColumn,    // searches that depend on the key alone
  kOfQuery,   // what is read of captured tensors for the query, whatever the key is
  kOfKey,     // and for the key, whatever head and query are
  kOfValues,  // mask_mod, given these
};

// The object to which a load's elements are added.
std::string element_sums(const CaptureLoad& load);

class Emitter {
 public:
  Emitter(const Problem& problem, const Program& program, Part part);

  bool is_row_search(size_t i) const;
  bool is_column_search(size_t i) const;
  bool is_of_query(size_t i) const;
  bool is_of_key(size_t i) const;
  // A load whose index is affine in kv with coefficient 1.
  bool is_straight_load(size_t i) const;
  template <typename Predicate>
  std::vector<size_t> nodes_that(Predicate predicate) const {
    std::vector<size_t> found;
    for (size_t i = 0; i < program_.nodes.size(); ++i) {
      if ((this->*predicate)(i)) {
        found.push_back(i);
      }
    }
    return found;
  }

  // Statements that compute every node, the result last.
  std::string body();

  // Statements that compute every node of a derivative, and those that give the score and set `derivative`.
  std::string derivative_body(ValueId d_score);

  // Statements of a derivative that compute every node, followed by statements for the requested loads.
  // captured_body: add a score's gradient to an element or to a row's sum; return its share of a diagonal's sum.
  std::string captured_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);
  // captured_key_body: add a score's gradient to the sum of its key.
  std::string captured_key_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);
  // captured_sums_body: add the sums of a row (kRow) or of a key (kKey) to the elements.
  std::string captured_sums_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads,
                                 CaptureSum sum);
  // flush_body: add what threads have summed of elements (kElement) or of diagonals (kDiagonal) last.
  std::string flush_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads, CaptureSum sum);
  // tables_body: add the sums of a block's tables to the elements.
  std::string tables_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);
  // diagonal_body: add the sum of a diagonal to its element.
  std::string diagonal_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);
  // plane_body: return a score's gradient for an element of the plane `load`.
  std::string plane_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);
  // store_plane_body: store the sum of an element of the plane `load`.
  std::string store_plane_body(const score::Derivative& derivative, const std::vector<CaptureLoad>& loads);

  // What the function of this part gives: the row's or the column's searches, or the query's or the key's values.
  std::vector<size_t> given() const;
  // Statements that give them.
  std::string given_body();

  // Statements that say whether all straight loads of a row's keys 0 to last_key are inside their tensors.
  std::string bounds_check();

 private:
  bool is_whole() const {
    return part_ == Part::kWhole || part_ == Part::kInside || part_ == Part::kZeros || part_ == Part::kOfValues;
  }

  // Over intervals: are all masks that it adds zeros?
  std::string zeros_condition() const;
  // Over intervals: kLoadsHold, if that is known.
  std::string holding_loads() const;
  bool is_mask(size_t i) const { return is_mask_load(program_, motion_, program_.nodes[i]); }

  void statements();

  // How much an i32 value grows from key to key, where that is constant: the sums with kv. Of such a value, the one at
  // the thread's first key is converted to f32 once, and a constant added for each other key: conversions are slow.
  void find_steps();

  std::string value_at_first_key(const Node& node) const;

  // A value that grows with kv at the first key; and, if asked for, with q at the first of two rows.
  std::string origin(ValueId id, bool first_row) const;

  std::string value(size_t i) const;

  std::string input(Op op) const;

  std::string operands(const Node& node) const;

  std::string call(const Node& node) const;

  // A comparison with the key's position: the key, which is a constant where the code is unrolled, with what the row
  // gives once. Otherwise each position takes an instruction of its own.
  std::optional<std::string> comparison_with_key(const Node& node) const;

  // x * c and x / c as one multiplication, and the score's own scale in the same one.
  std::optional<std::string> product_with_constant(const Node& node) const;

  // A row's slope times the distance to the key: the product at the first key once, and one multiply-add for each key.
  std::optional<std::string> product_with_distance(const Node& node) const;

  // The gradient of a load's element, from that of the score.
  std::string weighted(const score::LoadDerivative& load) const;
  // The gradient of a load's tensor and the indices of the element.
  std::string gradient_place(const Node& load) const;

  std::ptrdiff_t capture_index(const Node& node) const;
  const char* element_of(const Node& node) const;

  std::string load(const Node& node) const;

  // What the bounds of a load's tensor are of (1 also where it has none).
  int block_rows(const Node& node) const;

  // From the address at the first key, so that each key's is a constant away; and from that of the first of two rows if
  // the position grows with q too: the rows' elements are then seen to be the same ones, some keys apart.
  std::string straight_load(const Node& node) const;

  const Problem& problem_;
  const Program& program_;
  const Motion motion_;
  const std::vector<std::optional<Linear>> linear_;
  const Part part_;
  const bool interval_;
  std::vector<int> steps_;
  std::string text_;
};

}  // namespace flashlift::cuda
