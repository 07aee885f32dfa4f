#include "stablehlo/lift/lift.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/DenseSet.h"
#include "mlir/IR/Block.h"
#include "stablehlo/lift/evaluate.h"
#include "stablehlo/lift/layout.h"
#include "stablehlo/lift/program.h"
#include "stablehlo/lift/softmax.h"
#include "stablehlo/reader/ops.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

constexpr size_t kLongestChain = 20000;  // operations looked at on the way back from one product
constexpr int kMostSplits = 24;

bool is_product(mlir::Operation* op) {
  return kind(op) == OpKind::kDotGeneral && static_tensor(op->getResult(0)) && static_tensor(op->getOperand(0)) &&
         static_tensor(op->getOperand(1));
}

int64_t summed_elements(mlir::Operation* product) {
  int64_t count = 1;
  const auto dims = *dot_dims(product);
  for (const int64_t d : dims.lhs_contract) {
    count *= shape(product->getOperand(0))[static_cast<size_t>(d)];
  }
  return count;
}

// What a value is computed from, up to the products before it.
struct Chain {
  std::vector<mlir::Operation*> products;
  bool has_exponential = false;
};

Chain chain_behind(mlir::Value value) {
  Chain chain;
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Operation*> stack{value.getDefiningOp()};
  while (!stack.empty() && seen.size() < kLongestChain) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (op == nullptr || !seen.insert(op).second) {
      continue;
    }
    if (is_product(op)) {
      chain.products.push_back(op);
      continue;
    }
    chain.has_exponential |= kind(op) == OpKind::kExponential;
    for (const mlir::Value operand : op->getOperands()) {
      stack.push_back(operand.getDefiningOp());
    }
  }
  // Of several products the one with the longest sums is taken for the scores first; others become captured tensors.
  std::stable_sort(chain.products.begin(), chain.products.end(),
                   [](mlir::Operation* x, mlir::Operation* y) { return summed_elements(x) > summed_elements(y); });
  return chain;
}

// Remembers which operations compute with a product's result.
class DependsOn {
 public:
  explicit DependsOn(mlir::Operation* product) : product_(product) {}
  bool operator()(mlir::Operation* op) {
    if (op == product_) {
      return true;
    }
    if (const auto found = known_.find(op); found != known_.end()) {
      return found->second;
    }
    known_[op] = false;  // SSA has no cycles; this also bounds the walk
    bool depends = false;
    for (const mlir::Value operand : op->getOperands()) {
      mlir::Operation* definition = operand.getDefiningOp();
      depends = depends || (definition != nullptr && (*this)(definition));
    }
    known_[op] = depends;
    return depends;
  }

 private:
  mlir::Operation* product_;
  llvm::DenseMap<mlir::Operation*, bool> known_;
};

// One dimension of the probabilities may have been seen as several atoms.
using DigitSizes = std::vector<std::vector<int64_t>>;

// A try to read one pair of products as attention, with given digits for the dimensions of the probabilities.
class Attempt {
 public:
  // opens_reductions: read "any key is kept" as a formula, which can show what a condition on rows means but cannot
  // become a program; otherwise as the tensor that it is.
  Attempt(mlir::Operation* first, mlir::Operation* second, unsigned side, const DigitSizes& digits,
          bool opens_reductions)
      : first_(first),
        second_(second),
        side_(side),
        digits_(digits),
        opens_reductions_(opens_reductions),
        depends_(first) {}

  Result<LiftedAttention> run();
  // After a failure: the atom that must be split for a new try.
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split() const { return wanted_split_; }

 private:
  Status place_probabilities();
  Status evaluate_probabilities();
  Status match();
  Status find_division();
  Status place_operands();
  Result<std::vector<PlacedTensor>> pick_sources(bool through_conversions);
  Status place_output();
  Status give_letters();
  Status build_programs();
  Status check_uses();
  Status find_log_sum_exp(mlir::Value value);
  Status place_sinks();
  std::optional<std::vector<Index>> row_indices(mlir::Value value);
  void request_split(const SplitRequest& request);
  int new_atom(int64_t size);
  std::string summary() const;

  mlir::Operation* first_;
  mlir::Operation* second_;
  unsigned side_;  // which operand of the second product holds the probabilities
  const DigitSizes& digits_;
  bool opens_reductions_;
  DependsOn depends_;
  SymArena arena_;
  std::vector<int64_t> sizes_ = std::vector<int64_t>(kMaxAtoms, 1);
  int next_atom_ = 1;
  std::vector<std::pair<size_t, size_t>> origin_ = std::vector<std::pair<size_t, size_t>>(kMaxAtoms, {~size_t{0}, 0});
  std::vector<Index> probability_indices_;
  std::optional<Evaluator> evaluator_;
  SymId probability_ = kNoSym;
  SymId whole_ = kNoSym;  // the probabilities with what divides the second product's result
  Product product_;
  Softmax softmax_;
  std::vector<Affine> q_indices_, k_indices_, v_indices_;
  mlir::Value q_operand_, k_operand_, v_operand_;
  std::vector<int> depth_, value_depth_;
  PlacedTensor q_, k_, v_, out_;
  Roles roles_;
  std::vector<LeafInfo> leaf_infos_;
  std::optional<std::pair<size_t, std::pair<size_t, int64_t>>> wanted_split_;
  LiftedAttention lifted_;
};

int Attempt::new_atom(int64_t size) {
  sizes_[static_cast<size_t>(next_atom_)] = size;
  return next_atom_++;
}

void Attempt::request_split(const SplitRequest& request) {
  if (request.atom > kKeyAtom && request.atom < kFirstBound && origin_[request.atom].first != ~size_t{0}) {
    const auto [dim, digit] = origin_[request.atom];
    wanted_split_ = {dim, {digit, request.inner_size}};
  }
}

// Atoms for each dimension of the probabilities; the one that the second product sums over is the key.
Status Attempt::place_probabilities() {
  const auto dims = *dot_dims(second_);
  const auto& contract = side_ == 0 ? dims.lhs_contract : dims.rhs_contract;
  const mlir::Value probabilities = second_->getOperand(side_);
  const auto p_shape = shape(probabilities);
  if (contract.size() != 1) {
    return unsupported("the second product sums over {} dimensions of the probabilities, not over the keys alone",
                       contract.size());
  }
  for (size_t d = 0; d < p_shape.size(); ++d) {
    if (p_shape[d] == 0) {
      return unsupported("a dimension of the probabilities has size 0");
    }
    Index index;
    if (static_cast<int64_t>(d) == contract[0]) {
      sizes_[kKeyAtom] = p_shape[d];
      index.affine = affine_atom(kKeyAtom);
    } else {
      int64_t stride = p_shape[d];
      for (size_t digit = 0; digit < digits_[d].size(); ++digit) {
        const int64_t size = digits_[d][digit];
        stride /= size;
        if (size == 1) {
          continue;
        }
        if (next_atom_ + 8 >= kFirstBound) {
          return unsupported("the probabilities have too many dimensions");
        }
        const int atom = new_atom(size);
        origin_[static_cast<size_t>(atom)] = {d, digit};
        index.affine = affine_sum(index.affine, affine_product(affine_atom(atom), stride));
      }
    }
    probability_indices_.push_back(std::move(index));
  }
  return {};
}

Status Attempt::evaluate_probabilities() {
  evaluator_.emplace(arena_, first_, sizes_, opens_reductions_, [this](mlir::Operation* op) { return depends_(op); });
  probability_ = evaluator_->evaluate(second_->getOperand(side_), probability_indices_);
  if (probability_ == kNoSym) {
    request_split(evaluator_->split_request());
    return unsupported("{}",
                       evaluator_->failure().empty() ? "the probabilities could not be read" : evaluator_->failure());
  }
  if (evaluator_->score_indices().empty()) {
    return unsupported("the probabilities do not depend on the product before them");
  }
  return {};
}

Status Attempt::match() {
  product_ = as_product(arena_, probability_);
  whole_ = probability_;
  auto softmax = match_softmax(arena_, product_);
  if (softmax.ok()) {
    softmax_ = *std::move(softmax);
    return {};
  }
  return softmax.error();
}

// The second product's result on its way through transposes to a division by the row sum.
Status Attempt::find_division() {
  while (true) {
    if (auto next = follow_result(out_, sizes_)) {
      out_ = std::move(*next);
      continue;
    }
    if (!out_.value.hasOneUse()) {
      break;
    }
    mlir::Operation* user = *out_.value.getUsers().begin();
    const bool divides = kind(user) == OpKind::kDivide && user->getOperand(0) == out_.value;
    if ((!divides && kind(user) != OpKind::kMultiply) || user->getBlock() != second_->getBlock()) {
      break;
    }
    const unsigned other = user->getOperand(0) == out_.value ? 1 : 0;
    std::vector<Index> indices;
    for (size_t d = 0; d < out_.dims.size(); ++d) {
      Index index;
      int64_t stride = shape(out_.value)[d];
      for (const int atom : out_.dims[d]) {
        stride /= sizes_[static_cast<size_t>(atom)];
        index.affine = affine_sum(index.affine, affine_product(affine_atom(atom), stride));
      }
      indices.push_back(std::move(index));
    }
    const SymId factor = evaluator_->evaluate(user->getOperand(other), indices);
    if (factor == kNoSym) {
      request_split(evaluator_->split_request());
      return unsupported("{}", evaluator_->failure());
    }
    for (const int atom : value_depth_) {
      if (arena_.depends_on(factor, atom)) {
        return unsupported("the output is divided by something that is not one number a row");
      }
    }
    if (divides) {
      divide(arena_, product_, factor);
      whole_ = arena_.op(Op::k_div, {probability_, factor});
    } else {
      multiply(product_, as_product(arena_, factor));
      whole_ = arena_.op(Op::k_mul, {probability_, factor});
    }
    FLASHLIFT_ASSIGN_OR_RETURN(softmax_, match_softmax(arena_, product_));
    out_.value = user->getResult(0);
    return {};
  }
  return unsupported("the exponentials are not divided by their sum over the keys");
}

std::vector<Affine> affine_of(const std::vector<Index>& indices) {
  std::vector<Affine> affine;
  for (const Index& index : indices) {
    affine.push_back(index.affine);
  }
  return affine;
}

// The indices of one operand of a product, from those of its result and of the dimensions that are summed.
std::vector<Affine> operand_indices(const std::vector<int64_t>& batch, const std::vector<int64_t>& contract,
                                    size_t rank, const std::vector<Affine>& batch_indices,
                                    const std::vector<Affine>& contract_indices,
                                    const std::vector<Affine>& free_indices) {
  std::vector<Affine> indices(rank);
  std::vector<bool> is_free(rank, true);
  for (size_t i = 0; i < batch.size(); ++i) {
    indices[static_cast<size_t>(batch[i])] = batch_indices[i];
    is_free[static_cast<size_t>(batch[i])] = false;
  }
  for (size_t i = 0; i < contract.size(); ++i) {
    indices[static_cast<size_t>(contract[i])] = contract_indices[i];
    is_free[static_cast<size_t>(contract[i])] = false;
  }
  size_t next = 0;
  for (size_t d = 0; d < rank; ++d) {
    if (is_free[d]) {
      indices[d] = free_indices[next++];
    }
  }
  return indices;
}

bool mentions(const std::vector<Affine>& indices, int atom) {
  return std::any_of(indices.begin(), indices.end(), [&](const Affine& index) {
    return std::any_of(index.terms.begin(), index.terms.end(), [&](const auto& term) { return term.first == atom; });
  });
}

// Queries, keys and values with the indices at which the products read them.
Status Attempt::place_operands() {
  const auto dims = *dot_dims(first_);
  const std::vector<Affine> score = affine_of(evaluator_->score_indices());
  const size_t batch = dims.lhs_batch.size();
  std::vector<Affine> contract;
  for (const int64_t d : dims.lhs_contract) {
    const int64_t size = shape(first_->getOperand(0))[static_cast<size_t>(d)];
    contract.push_back(size == 1 ? Affine{} : affine_atom(new_atom(size)));
    if (size != 1) {
      depth_.push_back(next_atom_ - 1);
    }
  }
  const size_t lhs_rank = shape(first_->getOperand(0)).size();
  const size_t rhs_rank = shape(first_->getOperand(1)).size();
  const size_t lhs_free = lhs_rank - batch - dims.lhs_contract.size();
  const std::vector<Affine> batch_indices(score.begin(), score.begin() + static_cast<std::ptrdiff_t>(batch));
  const auto lhs_begin = score.begin() + static_cast<std::ptrdiff_t>(batch);
  const auto rhs_begin = lhs_begin + static_cast<std::ptrdiff_t>(lhs_free);
  auto lhs =
      operand_indices(dims.lhs_batch, dims.lhs_contract, lhs_rank, batch_indices, contract, {lhs_begin, rhs_begin});
  auto rhs =
      operand_indices(dims.rhs_batch, dims.rhs_contract, rhs_rank, batch_indices, contract, {rhs_begin, score.end()});
  const bool lhs_is_key = mentions(lhs, kKeyAtom);
  if (lhs_is_key == mentions(rhs, kKeyAtom)) {
    return unsupported("one operand of the first product must be the keys and the other must not depend on them");
  }
  q_operand_ = first_->getOperand(lhs_is_key ? 1 : 0);
  k_operand_ = first_->getOperand(lhs_is_key ? 0 : 1);
  q_indices_ = lhs_is_key ? rhs : lhs;
  k_indices_ = lhs_is_key ? lhs : rhs;
  return {};
}

// The value operand and the output of the second product.
Status Attempt::place_output() {
  const auto dims = *dot_dims(second_);
  const bool p_is_lhs = side_ == 0;
  v_operand_ = second_->getOperand(p_is_lhs ? 1 : 0);
  const auto& p_batch = p_is_lhs ? dims.lhs_batch : dims.rhs_batch;
  const auto& p_contract = p_is_lhs ? dims.lhs_contract : dims.rhs_contract;
  const auto& v_batch = p_is_lhs ? dims.rhs_batch : dims.lhs_batch;
  const auto& v_contract = p_is_lhs ? dims.rhs_contract : dims.lhs_contract;
  const std::vector<Affine> p = affine_of(probability_indices_);
  std::vector<Affine> batch;
  std::vector<Affine> p_free;
  for (const int64_t d : p_batch) {
    batch.push_back(p[static_cast<size_t>(d)]);
  }
  for (size_t d = 0; d < p.size(); ++d) {
    const int64_t dim = static_cast<int64_t>(d);
    if (dim != p_contract[0] && std::find(p_batch.begin(), p_batch.end(), dim) == p_batch.end()) {
      p_free.push_back(p[d]);
    }
  }
  const auto v_shape = shape(v_operand_);
  std::vector<Affine> v_free;
  for (size_t d = 0; d < v_shape.size(); ++d) {
    const int64_t dim = static_cast<int64_t>(d);
    if (dim != v_contract[0] && std::find(v_batch.begin(), v_batch.end(), dim) == v_batch.end()) {
      v_free.push_back(v_shape[d] == 1 ? Affine{} : affine_atom(new_atom(v_shape[d])));
      if (v_shape[d] != 1) {
        value_depth_.push_back(next_atom_ - 1);
      }
    }
  }
  v_indices_ = operand_indices(v_batch, v_contract, v_shape.size(), batch, {affine_atom(kKeyAtom)}, v_free);
  std::vector<Affine> out = batch;
  for (const auto& free : p_is_lhs ? std::vector{p_free, v_free} : std::vector{v_free, p_free}) {
    out.insert(out.end(), free.begin(), free.end());
  }
  auto placed = place_tensor(second_->getResult(0), out, sizes_);
  if (!placed) {
    return unsupported("the output's dimensions are not those of queries and values");
  }
  out_ = std::move(*placed);
  return {};
}

// The farthest source of each of q, k and v, all of one dtype.
Result<std::vector<PlacedTensor>> Attempt::pick_sources(bool through_conversions) {
  std::vector<PlacedTensor> picked;
  for (const auto& [operand, indices] :
       {std::pair(q_operand_, q_indices_), std::pair(k_operand_, k_indices_), std::pair(v_operand_, v_indices_)}) {
    Sources sources = follow_operand(operand, indices, sizes_, through_conversions);
    request_split(sources.split);
    if (wanted_split_) {
      return unsupported("a dimension must be split");
    }
    if (operand == v_operand_ && indices == v_indices_) {
      // A constant factor of the values is not a factor of the scores: keep what stands before it.
      std::erase_if(sources.tensors, [](const PlacedTensor& tensor) { return tensor.scale != 1.0f; });
    }
    if (sources.tensors.empty()) {
      return unsupported("the queries, keys or values are read by an index that no strided tensor has");
    }
    picked.push_back(sources.tensors.back());
  }
  const auto type = dtype(picked[0].value.getType());
  const bool supported = type == DType::kF32 || type == DType::kBF16 || type == DType::kF16;
  for (const PlacedTensor& tensor : picked) {
    if (!supported || dtype(tensor.value.getType()) != type) {
      return unsupported("queries, keys and values must be f32, bf16 or f16, and of one type");
    }
  }
  return picked;
}

Status Attempt::give_letters() {
  auto picked = pick_sources(true);
  if (!picked.ok() && !wanted_split_) {
    picked = pick_sources(false);
  }
  if (!picked.ok()) {
    return picked.error();
  }
  q_ = (*picked)[0];
  k_ = (*picked)[1];
  v_ = (*picked)[2];
  while (auto next = follow_result(out_, sizes_)) {
    out_ = std::move(*next);
  }
  const auto set_of = [](const PlacedTensor& tensor) {
    AtomSet set = 0;
    for (const int atom : tensor.order()) {
      set |= atom_bit(atom);
    }
    return set;
  };
  AtomSet depth = 0;
  for (const auto* atoms : {&depth_, &value_depth_}) {
    for (const int atom : *atoms) {
      depth |= atom_bit(atom);
    }
  }
  const AtomSet not_plane = depth | atom_bit(kKeyAtom);
  AtomUse use;
  use.in_q = set_of(q_) & ~not_plane;
  use.in_k = set_of(k_) & ~not_plane;
  use.in_v = set_of(v_) & ~not_plane;
  for (const int atom : q_.order()) {
    if ((not_plane & atom_bit(atom)) == 0) {
      use.q_order.push_back(atom);
    }
  }
  for (const Affine& index : affine_of(probability_indices_)) {
    for (const auto& term : index.terms) {
      if (term.first != kKeyAtom) {
        use.plane.push_back(term.first);
      }
    }
  }
  use.in_programs = arena_[softmax_.score].kind == SymKind::kScore ? 0 : AtomSet{0};
  for (const SymId guard : softmax_.guards) {
    use.in_programs |= arena_.depends_on(guard, kKeyAtom) ? arena_[guard].atoms : 0;
  }
  const auto dims = *dot_dims(first_);
  const size_t q_rank = shape(q_operand_).size();
  use.q_free_dims = static_cast<int>(q_rank - dims.lhs_batch.size() - dims.lhs_contract.size());
  FLASHLIFT_ASSIGN_OR_RETURN(roles_, assign_roles(use, sizes_));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.q, operand_view(q_, roles_, depth_, sizes_, false));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.k, operand_view(k_, roles_, depth_, sizes_, true));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.v, operand_view(v_, roles_, value_depth_, sizes_, true));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.out, result_view(out_, roles_, value_depth_, sizes_));
  return {};
}

// A name for a captured tensor that a person recognises: the argument's, or a number.
std::string leaf_name(mlir::Value value, size_t number) {
  if (const auto argument = llvm::dyn_cast<mlir::BlockArgument>(value)) {
    return fmt::format("arg{}", argument.getArgNumber());
  }
  return fmt::format("t{}", number);
}

Status Attempt::build_programs() {
  Problem& problem = lifted_.problem;
  problem.batch = extent(roles_.batch, sizes_);
  problem.kv_heads = extent(roles_.kv_head, sizes_);
  problem.q_heads = extent(roles_.heads(), sizes_);
  problem.q_len = extent(roles_.query, sizes_);
  problem.kv_len = sizes_[kKeyAtom];
  problem.head_dim = extent(depth_, sizes_);
  problem.value_dim = extent(value_depth_, sizes_);
  problem.dtype = *dtype(q_.value.getType());
  const auto out_dtype = dtype(out_.value.getType());
  if (!out_dtype) {
    return unsupported("the output has an unsupported element type");
  }
  problem.out_dtype = *out_dtype;

  FLASHLIFT_ASSIGN_OR_RETURN(const EmptyRows before_extraction, classify_empty_rows(arena_, whole_, softmax_));
  problem.empty_rows = before_extraction;
  // With a log-sum-exp wanted, a very negative score stays one: a row of nothing else has it in its log-sum-exp.
  if (!lifted_.lse && extract_finite_mask(arena_, softmax_)) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.empty_rows, classify_empty_rows(arena_, whole_, softmax_));
  }
  // Conditions on the scores themselves are not mask_mods; as -inf of the score_mod they mean the same.
  std::vector<SymId> guards;
  for (const SymId guard : softmax_.guards) {
    if (arena_[guard].has_score) {
      softmax_.score = arena_.op(Op::k_select, {guard, softmax_.score, arena_.f32(-INFINITY)});
    } else {
      guards.push_back(guard);
    }
  }
  SymId score = softmax_.score;
  problem.scale = extract_scale(arena_, score) * q_.scale * k_.scale;

  if (guards.empty() && arena_[score].kind == SymKind::kScore) {
    problem.empty_rows = EmptyRows::kZero;  // nothing masks: no row is ever empty
  }

  const auto& leaves = evaluator_->leaves();
  std::set<std::string> names;
  for (size_t i = 0; i < leaves.size(); ++i) {
    std::string name = leaf_name(leaves[i], i);
    name = names.insert(name).second ? name : fmt::format("t{}", i);
    names.insert(name);
    const auto dims = shape(leaves[i]);
    leaf_infos_.push_back(
        {Capture{.name = name, .dtype = *dtype(leaves[i].getType()), .shape = {dims.begin(), dims.end()}}});
  }
  const ProgramEmitter emitter(arena_, roles_, sizes_, leaf_infos_);
  if (arena_[score].kind != SymKind::kScore) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.score_mod, emitter.score_mod(score));
  }
  if (!guards.empty()) {
    FLASHLIFT_ASSIGN_OR_RETURN(problem.mask_mod, emitter.mask_mod(guards));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(problem.captures, collect_captures(problem.score_mod, problem.mask_mod));
  for (const Capture& capture : problem.captures) {
    for (size_t i = 0; i < leaves.size(); ++i) {
      if (leaf_infos_[i].capture.name == capture.name) {
        lifted_.captures.push_back(leaves[i]);
      }
    }
  }
  return {};
}

// Sinks are a tensor of the call: loads of one tensor by head, and by the sink's number if there are several.
Status Attempt::place_sinks() {
  if (softmax_.sinks.empty()) {
    return {};
  }
  if (softmax_.sinks.size() != 1) {
    return unsupported("sink logits stand in {} separate pieces", softmax_.sinks.size());
  }
  const Sym& sink = arena_[softmax_.sinks[0]];
  if (sink.kind == SymKind::kConstant) {
    lifted_.problem.sinks = softmax_.sink_sizes[0];
    lifted_.sinks = OperandView{.reshape = {lifted_.problem.q_heads, lifted_.problem.sinks},
                                .constant = arena_.f32_value(softmax_.sinks[0])};
    return {};
  }
  if (sink.kind != SymKind::kLoad) {
    return unsupported("sink logits are computed between the two products; compute them before");
  }
  const mlir::Value source = evaluator_->leaves()[static_cast<size_t>(sink.payload)];
  if (dtype(source.getType()) != DType::kF32) {
    return unsupported("sink logits are {}, expected f32", to_string(*dtype(source.getType())));
  }
  PlacedTensor tensor{.value = source, .dims = {}};
  std::vector<int> order;
  for (const SymId index : sink.args) {
    // An affine index again, from its formula: a sum of multiples of atoms.
    std::vector<std::pair<int64_t, int>> digits;  // (coefficient, atom)
    std::vector<SymId> stack{index};
    while (!stack.empty()) {
      const Sym term = arena_[stack.back()];
      stack.pop_back();
      if (term.kind == SymKind::kOp && term.op == Op::k_add) {
        stack.insert(stack.end(), term.args.begin(), term.args.end());
      } else if (term.kind == SymKind::kAtom) {
        digits.emplace_back(1, static_cast<int>(term.payload));
      } else if (term.kind == SymKind::kOp && term.op == Op::k_mul && arena_[term.args[0]].kind == SymKind::kAtom &&
                 arena_.is_constant(term.args[1])) {
        digits.emplace_back(arena_[term.args[1]].payload, static_cast<int>(arena_[term.args[0]].payload));
      } else if (!(term.kind == SymKind::kConstant && term.payload == 0)) {
        return unsupported("sink logits are read at computed indices");
      }
    }
    std::sort(digits.rbegin(), digits.rend());
    for (const auto& digit : digits) {
      order.push_back(digit.second);
    }
  }
  std::vector<int> wanted = roles_.heads();
  const int sink_atom = softmax_.sink_atoms[0];
  if (sink_atom >= 0) {
    wanted.push_back(sink_atom);
  }
  std::vector<int64_t> digit_sizes;
  int64_t count = 1;
  for (const int atom : order) {
    if (std::find(wanted.begin(), wanted.end(), atom) == wanted.end()) {
      return unsupported("sink logits depend on more than the head");
    }
    digit_sizes.push_back(atom == sink_atom ? softmax_.sink_sizes[0] : sizes_[static_cast<size_t>(atom)]);
    count *= digit_sizes.back();
  }
  if (order.size() != wanted.size() || count != static_tensor(source).getNumElements()) {
    return unsupported("sink logits are not one number a head");
  }
  OperandView view{.source = source, .reshape = digit_sizes, .permutation = {}, .dims = {}};
  if (order != wanted) {
    for (const int atom : wanted) {
      view.permutation.push_back(std::find(order.begin(), order.end(), atom) - order.begin());
    }
  }
  lifted_.problem.sinks = softmax_.sink_sizes[0];
  lifted_.sinks = std::move(view);
  return {};
}

// The indices of a value that has one element a row: one dimension for each atom of the plane, of whatever order.
std::optional<std::vector<Index>> Attempt::row_indices(mlir::Value value) {
  if (!static_tensor(value) || dtype(value.getType()) != DType::kF32) {
    return std::nullopt;
  }
  // Row values keep the order of the scores' dimensions in the first product or of the probabilities; what was
  // transposed later is followed there by uses.
  for (const auto& order : {probability_indices_, evaluator_->score_indices()}) {
    std::vector<Index> indices;
    size_t d = 0;
    const auto dims = shape(value);
    for (const Index& index : order) {
      const bool is_key = index.affine == affine_atom(kKeyAtom);
      const int64_t size = index.affine.is_constant() ? 1 : affine_range(index.affine, sizes_).high + 1;
      if (is_key) {
        continue;
      }
      if (d < dims.size() && dims[d] == size) {
        indices.push_back(index);
        ++d;
      } else if (size != 1) {
        break;
      }
    }
    while (d < dims.size() && dims[d] == 1) {
      indices.push_back(Index{});
      ++d;
    }
    if (d == dims.size() && indices.size() == dims.size()) {
      return indices;
    }
  }
  return std::nullopt;
}

Status Attempt::find_log_sum_exp(mlir::Value value) {
  const auto indices = row_indices(value);
  if (!indices) {
    return unsupported("not a row");
  }
  Evaluator evaluator(arena_, first_, sizes_, opens_reductions_, [this](mlir::Operation* op) { return depends_(op); });
  // The same numbering of leaves, so that equal formulas are equal.
  const SymId formula = [&] {
    const SymId again = evaluator.evaluate(second_->getOperand(side_), probability_indices_);
    return again == kNoSym ? kNoSym : evaluator.evaluate(value, *indices);
  }();
  if (formula == kNoSym || !is_log_sum_exp(arena_, formula, softmax_)) {
    return unsupported("not the log-sum-exp");
  }
  auto placed = place_tensor(value, affine_of(*indices), sizes_);
  if (!placed) {
    return unsupported("not a strided row");
  }
  while (auto next = follow_result(*placed, sizes_)) {
    placed = std::move(next);
  }
  if (dtype(placed->value.getType()) != DType::kF32) {
    return unsupported("the log-sum-exp is not f32");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.lse, result_view(*placed, roles_, value_depth_, sizes_));
  lifted_.problem.want_lse = true;
  return {};
}

// Everything that the scores flow into must end in what the call replaces.
Status Attempt::check_uses() {
  llvm::DenseSet<mlir::Operation*> seen;
  std::vector<mlir::Operation*> stack{first_};
  while (!stack.empty()) {
    mlir::Operation* op = stack.back();
    stack.pop_back();
    if (!seen.insert(op).second) {
      continue;
    }
    for (const mlir::Value result : op->getResults()) {
      if (result == lifted_.out.replaced || (lifted_.lse && result == lifted_.lse->replaced)) {
        continue;
      }
      if (!lifted_.lse && softmax_.sinks.empty() && !result.use_empty() && kind(op) == OpKind::kAdd &&
          find_log_sum_exp(result).ok()) {
        if (result == lifted_.lse->replaced) {
          continue;
        }
      }
      for (mlir::Operation* user : result.getUsers()) {
        if (!is_removable(user)) {
          return unsupported(
              "scores or probabilities are used elsewhere (for a gradient, or as an output): they reach "
              "`{}` at {}",
              user->getName().getStringRef().str(), describe(user->getLoc()));
        }
        stack.push_back(user);
      }
    }
  }
  return {};
}

std::string Attempt::summary() const {
  const Problem& p = lifted_.problem;
  std::string text = fmt::format("softmax over {} keys, {} of {} queries x {} heads", p.kv_len,
                                 p.kv_heads == p.q_heads ? "attention" : "grouped attention", p.q_len, p.q_heads);
  const auto note = [&](bool present, std::string_view words) { text += present ? fmt::format(", {}", words) : ""; };
  note(p.score_mod.has_value(), "with a score_mod");
  note(p.mask_mod.has_value(), "with a mask_mod");
  note(p.sinks > 0, "with sinks");
  note(p.want_lse, "with the log-sum-exp");
  return text;
}

Result<LiftedAttention> Attempt::run() {
  lifted_.first_product = first_;
  lifted_.second_product = second_;
  FLASHLIFT_RETURN_IF_ERROR(place_probabilities());
  FLASHLIFT_RETURN_IF_ERROR(evaluate_probabilities());
  FLASHLIFT_RETURN_IF_ERROR(place_operands());
  FLASHLIFT_RETURN_IF_ERROR(place_output());
  if (const Status matched = match(); !matched.ok()) {
    if (!product_.over.empty() || !find_division().ok()) {
      return matched.error();
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(give_letters());
  FLASHLIFT_RETURN_IF_ERROR(check_uses());
  FLASHLIFT_RETURN_IF_ERROR(build_programs());
  FLASHLIFT_RETURN_IF_ERROR(place_sinks());
  FLASHLIFT_RETURN_IF_ERROR(verify(lifted_.problem));
  lifted_.summary = summary();
  return std::move(lifted_);
}

// Tries with finer and finer digits until nothing asks for a split.
Result<LiftedAttention> lift_pair(mlir::Operation* first, mlir::Operation* second, unsigned side,
                                  bool opens_reductions) {
  DigitSizes digits;
  for (const int64_t size : shape(second->getOperand(side))) {
    digits.push_back({size});
  }
  for (int tries = 0; tries < kMostSplits; ++tries) {
    Attempt attempt(first, second, side, digits, opens_reductions);
    auto lifted = attempt.run();
    const auto split = attempt.wanted_split();
    if (lifted.ok() || !split) {
      return lifted;
    }
    const auto& [dim, digit_and_inner] = *split;
    const auto& [digit, inner] = digit_and_inner;
    auto& sizes = digits[dim];
    sizes[digit] /= inner;
    sizes.insert(sizes.begin() + static_cast<std::ptrdiff_t>(digit) + 1, inner);
  }
  return unsupported("the reshapes between the two products split dimensions in too many ways");
}

}  // namespace

Result<LiftedAttention> lift_attention(mlir::Operation* second_product) {
  if (!is_product(second_product)) {
    return not_found("not a matrix product of static shapes");
  }
  std::optional<Error> reason;
  for (unsigned side = 0; side < 2; ++side) {
    const Chain chain = chain_behind(second_product->getOperand(side));
    if (!chain.has_exponential) {
      continue;
    }
    for (mlir::Operation* first : chain.products) {
      if (first->getBlock() != second_product->getBlock()) {
        continue;
      }
      auto lifted = lift_pair(first, second_product, side, false);
      if (!lifted.ok()) {
        if (auto opened = lift_pair(first, second_product, side, true); opened.ok()) {
          return opened;
        }
      }
      if (lifted.ok()) {
        return lifted;
      }
      reason = reason ? reason : lifted.error();
    }
  }
  if (reason) {
    return *reason;
  }
  return not_found("no exponential of a product stands before this product");
}

}  // namespace flashlift::stablehlo
