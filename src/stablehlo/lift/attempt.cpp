#include "stablehlo/lift/attempt.h"

#include <algorithm>
#include <cmath>

#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

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

}  // namespace

bool is_product(mlir::Operation* op) {
  return op != nullptr && (kind(op) == OpKind::kDotGeneral || kind(op) == OpKind::kDot) &&
         static_tensor(op->getResult(0)) && static_tensor(op->getOperand(0)) && static_tensor(op->getOperand(1));
}

OperandDims operand_dims(mlir::Operation* product, unsigned side) {
  const auto dims = *dot_dims(product);
  const auto& batch = side == 0 ? dims.lhs_batch : dims.rhs_batch;
  const auto& contract = side == 0 ? dims.lhs_contract : dims.rhs_contract;
  OperandDims own{{batch.begin(), batch.end()}, {contract.begin(), contract.end()}, {}};
  const auto rank = static_cast<int64_t>(shape(product->getOperand(side)).size());
  for (int64_t d = 0; d < rank; ++d) {
    if (!llvm::is_contained(own.batch, d) && !llvm::is_contained(own.contract, d)) {
      own.free.push_back(d);
    }
  }
  return own;
}

std::optional<bool> DependsOn::known(mlir::Operation* op) const {
  if (op == product_) {
    return true;
  }
  // What stands before the product, or in a block around its own, does not depend on it.
  if (op == nullptr || op->getBlock() != product_->getBlock() || op->isBeforeInBlock(product_) ||
      llvm::is_contained(barriers_, op)) {
    return false;
  }
  const auto found = known_.find(op);
  return found == known_.end() ? std::nullopt : std::optional(found->second);
}

// Without recursion: as many operations as a module has may stand behind one another.
bool DependsOn::operator()(mlir::Operation* op) {
  std::vector<mlir::Operation*> pending{op};
  while (!pending.empty()) {
    mlir::Operation* next = pending.back();
    bool depends = false;
    bool complete = true;
    for (size_t i = 0; !known(next) && i < next->getNumOperands(); ++i) {
      mlir::Operation* definition = next->getOperand(static_cast<unsigned>(i)).getDefiningOp();
      const std::optional<bool> operand = known(definition);
      depends = depends || operand.value_or(false);
      if (!operand) {
        pending.push_back(definition);
        complete = false;
      }
    }
    if (complete || known(next)) {
      if (!known(next)) {
        known_[next] = depends;
      }
      pending.pop_back();
    }
  }
  return *known(op);
}

std::vector<Affine> affine_of(const std::vector<Index>& indices) {
  std::vector<Affine> affine;
  for (const Index& index : indices) {
    affine.push_back(index.affine);
  }
  return affine;
}

int Attempt::new_atom(int64_t size) {
  sizes_[static_cast<size_t>(next_atom_)] = size;
  return next_atom_++;
}

Proof Attempt::check_atoms_left(size_t count) const {
  return static_cast<size_t>(next_atom_) + count <= static_cast<size_t>(kFirstBound)
             ? Proof()
             : refuse<Reason::kTooManyOperandDimensions>();
}

void Attempt::request_split(const SplitRequest& request) {
  if (request.atom > kKeyAtom && request.atom < kFirstBound && origin_[request.atom].first != ~size_t{0}) {
    const auto [dim, digit] = origin_[request.atom];
    wanted_split_ = {dim, {digit, request.inner_size}};
  }
}

// Atoms for each dimension of the probabilities; those that the second product sums over are the key together.
Proof Attempt::place_probabilities() {
  const mlir::Value probabilities = second_->getOperand(side_);
  const auto p_shape = shape(probabilities);
  const OperandDims dims = operand_dims(second_, side_);
  key_dims_ = options_.gradient == GradientUse::kAlone ? dims.free : dims.contract;
  std::sort(key_dims_.begin(), key_dims_.end());
  if (key_dims_.empty()) {
    return refuse<Reason::kNoKeyDimension>();
  }
  for (size_t d = 0; d < p_shape.size(); ++d) {
    if (p_shape[d] == 0) {
      return refuse<Reason::kEmptyDimension>();
    }
    Index index;
    if (std::find(key_dims_.begin(), key_dims_.end(), static_cast<int64_t>(d)) != key_dims_.end()) {
      sizes_[kKeyAtom] *= p_shape[d];
      index.affine = affine_atom(kKeyAtom);  // of several, make_evaluator() gives each its part
    } else {
      int64_t stride = p_shape[d];
      for (size_t digit = 0; digit < digits_[d].size(); ++digit) {
        const int64_t size = digits_[d][digit];
        stride /= size;
        if (size == 1) {
          continue;
        }
        if (next_atom_ + 8 >= kFirstBound) {
          return refuse<Reason::kTooManyDimensions>();
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

std::optional<DType> Attempt::half_type(mlir::Operation* first, mlir::Operation* second, unsigned side,
                                        const AttemptOptions& options) {
  const auto half = half_type_of(first->getOperand(0));
  const bool knows_values = options.gradient != GradientUse::kAlone;
  const bool is_shared = half == half_type_of(first->getOperand(1)) &&
                         (!knows_values || half == half_type_of(second->getOperand(1 - side)));
  return is_shared ? half : std::nullopt;
}

// The same numbering of atoms and leaves each time, so that equal formulas are equal.
Outcome<Evaluator> Attempt::make_evaluator() {
  Evaluator evaluator(
      arena_, first_, sizes_, options_.opens_reductions, half_, [this](mlir::Operation* op) { return depends_(op); },
      *options_.work);
  if (key_dims_.size() > 1) {
    std::vector<int64_t> key_sizes;
    for (const int64_t dim : key_dims_) {
      key_sizes.push_back(shape(second_->getOperand(side_))[static_cast<size_t>(dim)]);
    }
    const auto digits = evaluator.key_digits(key_sizes);
    if (!digits) {
      return refuse<Reason::kTooManyKeyDimensions>();
    }
    for (size_t i = 0; i < key_dims_.size(); ++i) {
      probability_indices_[static_cast<size_t>(key_dims_[i])].affine = (*digits)[i];
    }
  }
  return evaluator;
}

Proof Attempt::evaluate_probabilities() {
  FLASHLIFT_ASSIGN_OR_RETURN(Evaluator evaluator, make_evaluator());
  evaluator_.emplace(std::move(evaluator));
  probability_ = evaluator_->evaluate(second_->getOperand(side_), probability_indices_);
  if (probability_ == kNoSym) {
    request_split(evaluator_->split_request());
    return evaluator_->why_not();
  }
  if (evaluator_->score_indices().empty()) {
    return refuse<Reason::kNoScore>();
  }
  std::copy(evaluator_->atom_sizes().begin() + kFirstBound, evaluator_->atom_sizes().end(),
            sizes_.begin() + kFirstBound);
  roles_.key = evaluator_->smallest_key_digits();
  return {};
}

Proof Attempt::match() {
  product_ = as_product(arena_, probability_);
  whole_ = probability_;
  auto softmax = match_softmax(arena_, product_);
  if (softmax.ok()) {
    softmax_ = *std::move(softmax);
    return check_maximum();
  }
  return softmax.error();
}

// Formulas do not show where scores are rounded to 16 bits. A maximum of rounded scores may lie above those that are
// not: then no row need sum to 1.
Proof Attempt::check_maximum() {
  const auto body = softmax_.needs_maximum ? body_of_maximum(arena_, softmax_) : std::nullopt;
  const auto is_narrow = [](mlir::Value value) { return dtype(value.getType()) != DType::kF32; };
  const auto comes_from_narrow = [&](mlir::Value value) {
    mlir::Operation* op = value.getDefiningOp();
    return op != nullptr && kind(op) == OpKind::kConvert && is_narrow(op->getOperand(0));
  };
  bool has_narrow = false;
  bool reads_wide = false;
  for (const Evaluator::Place& place : evaluator_->places()) {
    if (!body || place.formula != *body) {
      continue;
    }
    mlir::Value value = place.value;
    has_narrow = has_narrow || is_narrow(value);
    if (!is_narrow(value) && !comes_from_narrow(value)) {
      reads_wide = reads_wide || llvm::any_of(value.getUsers(), [&](mlir::Operation* user) {
                     return kind(user) != OpKind::kConvert || !is_narrow(user->getResult(0));
                   });
    }
  }
  if (has_narrow && reads_wide) {
    return refuse<Reason::kRoundedMaximum>();
  }
  return {};
}

// Whether some tensor that the score reads may hold infinities or NaN: any floats but those of a constant without them.
bool Attempt::data_may_be_infinite() const {
  return std::any_of(softmax_.key_terms.begin(), softmax_.key_terms.end(), [&](const SignedTerm& term) {
    const std::vector<SymId> loads = loads_of(arena_, term.term);
    return std::any_of(loads.begin(), loads.end(), [&](SymId load) {
      const Sym& sym = arena_[load];
      const auto range = sym.type == Type::kF32 ? known_bounds().leaf(sym.payload) : std::nullopt;
      return sym.type == Type::kF32 && !(range && std::isfinite(range->real_lo) && std::isfinite(range->real_hi));
    });
  });
}

// nan_to_num of probabilities clears the rows that have no keys, and others that are NaN: those in which a tensor that
// the score reads is +inf or NaN. A call leaves these NaN. So does a condition on rows that no NaN fulfils.
Proof Attempt::check_clean_up() {
  if (!data_may_be_infinite()) {
    return {};
  }
  if (softmax_.clears_nan) {
    return refuse<Reason::kConditionClearsNan>();
  }
  return clears_nan(arena_, whole_) ? refuse<Reason::kClearsNan>() : Proof();
}

// The second product's result on its way through transposes to a division by the row sum.
Proof Attempt::find_division() {
  while (true) {
    if (auto next = follow_result(out_, sizes_, half_)) {
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
      return evaluator_->why_not();
    }
    for (const int atom : value_depth_) {
      if (arena_.depends_on(factor, atom)) {
        return refuse<Reason::kOutputDivisor>();
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
    FLASHLIFT_RETURN_IF_ERROR(check_maximum());
    out_.value = user->getResult(0);
    return {};
  }
  return refuse<Reason::kNotDivided>();
}

// Queries, keys and values with the indices at which the products read them.
Proof Attempt::place_operands() {
  const auto dims = *dot_dims(first_);
  const std::vector<Affine> score = affine_of(evaluator_->score_indices());
  const size_t batch = dims.lhs_batch.size();
  std::vector<Affine> contract;
  FLASHLIFT_RETURN_IF_ERROR(check_atoms_left(dims.lhs_contract.size()));
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
  const auto mentions_key = [&](const std::vector<Affine>& indices) {
    return std::any_of(indices.begin(), indices.end(), [&](const Affine& i) { return evaluator_->runs_over_keys(i); });
  };
  const bool lhs_is_key = mentions_key(lhs);
  if (lhs_is_key == mentions_key(rhs)) {
    return refuse<Reason::kNoKeys>();
  }
  q_operand_ = first_->getOperand(lhs_is_key ? 1 : 0);
  k_operand_ = first_->getOperand(lhs_is_key ? 0 : 1);
  q_indices_ = lhs_is_key ? rhs : lhs;
  k_indices_ = lhs_is_key ? lhs : rhs;
  return {};
}

// The value operand and the output of the second product.
Proof Attempt::place_output() {
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
    if (std::find(key_dims_.begin(), key_dims_.end(), dim) == key_dims_.end() &&
        std::find(p_batch.begin(), p_batch.end(), dim) == p_batch.end()) {
      p_free.push_back(p[d]);
    }
  }
  const auto v_shape = shape(v_operand_);
  std::vector<Affine> v_free;
  FLASHLIFT_RETURN_IF_ERROR(check_atoms_left(v_shape.size()));
  for (size_t d = 0; d < v_shape.size(); ++d) {
    const int64_t dim = static_cast<int64_t>(d);
    if (std::find(v_contract.begin(), v_contract.end(), dim) == v_contract.end() &&
        std::find(v_batch.begin(), v_batch.end(), dim) == v_batch.end()) {
      v_free.push_back(v_shape[d] == 1 ? Affine{} : affine_atom(new_atom(v_shape[d])));
      if (v_shape[d] != 1) {
        value_depth_.push_back(next_atom_ - 1);
      }
    }
  }
  std::vector<Affine> keys;
  for (const int64_t d : p_contract) {
    keys.push_back(p[static_cast<size_t>(d)]);
  }
  v_indices_ = operand_indices(v_batch, v_contract, v_shape.size(), batch, keys, v_free);
  std::vector<Affine> out = batch;
  for (const auto& free : p_is_lhs ? std::vector{p_free, v_free} : std::vector{v_free, p_free}) {
    out.insert(out.end(), free.begin(), free.end());
  }
  auto placed = place_tensor(second_->getResult(0), out, sizes_);
  if (!placed) {
    return refuse<Reason::kOutputDimensions>();
  }
  out_ = std::move(*placed);
  return {};
}

// The farthest source of each of q, k and v, all of one dtype.
Outcome<std::vector<PlacedTensor>> Attempt::pick_sources(bool through_conversions) {
  std::vector<PlacedTensor> picked;
  for (const auto& [operand, indices] :
       {std::pair(q_operand_, q_indices_), std::pair(k_operand_, k_indices_), std::pair(v_operand_, v_indices_)}) {
    Sources sources = follow_operand(operand, indices, sizes_, through_conversions);
    request_split(sources.split);
    if (wanted_split_) {
      return refuse<Reason::kSplitDimension>();
    }
    if (operand == v_operand_ && indices == v_indices_) {
      // A constant factor of the values is not a factor of the scores: keep what stands before it.
      std::erase_if(sources.tensors, [](const PlacedTensor& tensor) { return tensor.scale != 1.0f; });
    }
    if (sources.tensors.empty()) {
      return refuse<Reason::kNotStrided>();
    }
    // A gradient is by the operand itself: what it is made from may be scaled or repeated.
    picked.push_back(options_.gradient != GradientUse::kNone ? sources.tensors.front() : sources.tensors.back());
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

Proof Attempt::give_letters() {
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
  if (options_.gradient != GradientUse::kAlone) {
    while (auto next = follow_result(out_, sizes_, half_)) {
      out_ = std::move(*next);
    }
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
  AtomSet not_plane = depth | atom_bit(kKeyAtom);
  for (const int atom : roles_.key) {
    not_plane |= atom_bit(atom);
  }
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
      if ((not_plane & atom_bit(term.first)) == 0) {
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
  for (const PlacedTensor* tensor : {&k_, &v_}) {  // a bias of key rows alone, q times a table, is no product of scores
    int64_t keys = 1;
    for (const int atom : tensor->order()) {
      keys *= evaluator_->runs_over_keys(affine_atom(atom)) ? sizes_[static_cast<size_t>(atom)] : 1;
    }
    if (keys != sizes_[kKeyAtom]) {
      return refuse<Reason::kRepeatedKeys>();
    }
  }
  const std::vector<int> key = roles_.key;
  FLASHLIFT_ASSIGN_OR_RETURN(roles_, assign_roles(use, sizes_));
  roles_.key = key;
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.q, operand_view(q_, roles_, depth_, sizes_, false));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.k, operand_view(k_, roles_, depth_, sizes_, true));
  FLASHLIFT_ASSIGN_OR_RETURN(lifted_.v, operand_view(v_, roles_, value_depth_, sizes_, true));
  if (options_.gradient != GradientUse::kAlone) {
    FLASHLIFT_ASSIGN_OR_RETURN(lifted_.out, result_view(out_, roles_, value_depth_, sizes_));
  }
  return {};
}

Outcome<LiftedAttention> Attempt::run() {
  lifted_.first_product = first_;
  lifted_.second_product = second_;
  FLASHLIFT_RETURN_IF_ERROR(place_probabilities());
  FLASHLIFT_RETURN_IF_ERROR(evaluate_probabilities());
  FLASHLIFT_RETURN_IF_ERROR(place_operands());
  const bool has_output = options_.gradient != GradientUse::kAlone;
  FLASHLIFT_RETURN_IF_ERROR(has_output ? place_output() : place_values_of_gradient());
  if (const Proof matched = match(); !matched.ok()) {
    if (!has_output || !product_.over.empty()) {
      return matched.error();
    }
    if (const Proof divided = find_division(); !divided.ok()) {
      return product_.over.empty() ? matched.error() : divided.error();
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(check_clean_up());
  leave_out_known_conditions();
  FLASHLIFT_RETURN_IF_ERROR(give_letters());
  FLASHLIFT_RETURN_IF_ERROR(options_.gradient == GradientUse::kNone ? check_uses() : find_gradient());
  FLASHLIFT_RETURN_IF_ERROR(build_programs());
  FLASHLIFT_RETURN_IF_ERROR(place_sinks());
  FLASHLIFT_RETURN_IF_ERROR(place_keep_mask());
  if (lifted_.gradient) {
    FLASHLIFT_RETURN_IF_ERROR(write_sums());
  }
  FLASHLIFT_RETURN_IF_ERROR(verify(lifted_.problem));
  lifted_.summary = summary();
  return std::move(lifted_);
}

}  // namespace flashlift::stablehlo
