#include "flashlift/stablehlo.h"

#include <algorithm>
#include <map>
#include <memory>
#include <optional>
#include <set>

#include "llvm/ADT/DenseSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "stablehlo/barriers.h"
#include "stablehlo/branches.h"
#include "stablehlo/bytecode/write.h"
#include "stablehlo/equal_products.h"
#include "stablehlo/forward_passes.h"
#include "stablehlo/lift/candidates.h"
#include "stablehlo/lift/lift.h"
#include "stablehlo/loop_carries.h"
#include "stablehlo/loop_residuals.h"
#include "stablehlo/partition.h"
#include "stablehlo/parts.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rearrange/rearrange.h"
#include "stablehlo/rewrite/cudnn.h"
#include "stablehlo/rewrite/rewrite.h"
#include "stablehlo/sharding.h"
#include "stablehlo/shared_passes.h"
#include "stablehlo/static_shapes.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/fork_guard.h"
#include "support/own_stack.h"
#include "support/printable.h"

namespace flashlift::stablehlo {
namespace {

// Attributes that list the composites that an operation comes from, outermost last. A composite's number is its
// position in the module.
constexpr const char* kComposite = "flashlift.composite";
constexpr const char* kOrigins = "flashlift.origins";

// Why attention stays in a backward pass that computes it again, by the place of its product of queries and keys.
using ReasonsOfRepeated = std::map<std::string, std::string>;

// Fuses the attention in a module without calls.
class Fuser {
 public:
  Fuser(Module& module, const FuseOptions& options, ReasonsOfRepeated known = {})
      : of_repeated(std::move(known)),
        module_(module),
        as_(options.as),
        gradients_(options.gradients && options.as == FuseAs::kCustomCall),
        partitioner_(module, annotations_, options.partitions) {}

  void run() {
    merge_equal_branches(module_);
    use_static_shapes(module_);
    work_.sets_size = find_size_at_run_time(module_);
    move_masks_into_loops(module_);
    read_products();
    split_sums_of_softmaxes();
    llvm::SmallVector<mlir::Operation*> cudnn_calls;
    module_.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
      if (is_cudnn_attention(op)) {
        cudnn_calls.push_back(op);
      } else if ((kind(op) == OpKind::kDotGeneral || kind(op) == OpKind::kDot) && !op->use_empty()) {
        products_.push_back(op);
      }
    });
    for (mlir::Operation* call : cudnn_calls) {
      visit_cudnn(call);
    }
    Barriers barriers;
    barriers.open(module_);
    annotations_.open(module_);
    for (mlir::Operation* product : products_) {
      if (!erased_.contains(product)) {
        visit(product);
      }
      if (work_.is_spent()) {
        break;  // the last candidate's reason reports this
      }
    }
    take_back_unfused();
    annotations_.close(erased_);
    barriers.close(erased_);
    for (const auto& [place, candidate] : repeated_) {
      of_repeated.try_emplace(place, candidates[candidate].reason);
    }
    annotations_.remove_unused();
    remove_dead_code(module_);
  }

  std::vector<Candidate> candidates;
  bool changed = false;
  ComputationNumbers in_vain;  // of products that were repeated for a gradient, and were fused without one
  ReasonsOfRepeated of_repeated;
  std::set<int64_t> composites;  // composites that contained an operation of a fused attention

 private:
  static Candidate candidate_at(mlir::Operation* op) {
    Candidate candidate;
    candidate.location = describe(op->getLoc());
    if (auto function = op->getParentOfType<mlir::func::FuncOp>()) {
      candidate.function = function.getName().str();
    }
    return candidate;
  }

  static std::optional<Rearrangement> read_otherwise(mlir::Operation* op) {
    if (kind(op) == OpKind::kAdd || kind(op) == OpKind::kMaximum) {
      auto whole = slices_as_reduction(op);
      return whole || kind(op) == OpKind::kMaximum ? std::move(whole) : log_sum_of_other_base(op);
    }
    if (kind(op) == OpKind::kReduce || kind(op) == OpKind::kReduceWindow) {
      auto whole = windows_as_reduction(op);
      return whole ? std::move(whole) : multiplied_sum_as_product(op);
    }
    auto weighted = weight_product_as_multiplication(op);
    return weighted ? std::move(weighted) : product_as_multiplied_sum(op);
  }

  // Reads sums of multiplications as products, and products in which an operand has no dimension of its own as
  // multiplications: those near a softmax, and then all others, which may be part of its gradient. Reads log-sum-exps
  // of other bases as natural ones, and windows over whole rows, or slices that together are, as reductions.
  void read_products() {
    std::vector<mlir::Operation*> found;
    module_.op()->walk([&](mlir::Operation* op) {
      if (kind(op) == OpKind::kReduce || kind(op) == OpKind::kReduceWindow || kind(op) == OpKind::kDotGeneral ||
          kind(op) == OpKind::kAdd || kind(op) == OpKind::kMaximum) {
        found.push_back(op);
      }
    });
    bool is_any_near = false;
    for (mlir::Operation* op : found) {
      auto read = read_otherwise(op);
      if (!read) {
        continue;
      }
      mlir::Operation* const now = read->product;
      is_any_near = is_any_near || is_near_softmax(now->getResult(0)) || is_near_softmax(now->getOperand(0)) ||
                    is_near_softmax(now->getOperand(1));
      read_otherwise_.push_back(*std::move(read));
    }
    if (!is_any_near) {
      for (; !read_otherwise_.empty(); read_otherwise_.pop_back()) {
        stablehlo::take_back(read_otherwise_.back());
      }
    }
  }

  void split_sums_of_softmaxes() {
    std::vector<mlir::Operation*> sums;
    module_.op()->walk([&](mlir::Operation* op) {
      if (kind(op) == OpKind::kAdd || kind(op) == OpKind::kSubtract) {
        sums.push_back(op);
      }
    });
    for (; !sums.empty(); sums.pop_back()) {  // a sum before its terms
      if (auto split = split_sum_of_softmaxes(sums.back())) {
        read_otherwise_.push_back(*std::move(split));
      }
    }
  }

  // Restores what was read otherwise and is in no fused attention. A later one may be of operations that an earlier one
  // added, so it is restored first; if it stays, so does the earlier one.
  void take_back_unfused() {
    for (; !read_otherwise_.empty(); read_otherwise_.pop_back()) {
      const Rearrangement& read = read_otherwise_.back();
      if (llvm::any_of(read.added, [&](mlir::Operation* op) { return erased_.contains(op); }) ||
          is_read_elsewhere(read)) {
        continue;
      }
      stablehlo::take_back(read);
      erased_.insert(read.added.begin(), read.added.end());  // annotations were of their results, or on their operands
    }
  }

  void visit_cudnn(mlir::Operation* call) {
    Candidate candidate = candidate_at(call);
    const std::string target(custom_call(call)->target);
    const Result<Problem> problem =
        as_ != FuseAs::kCustomCall    ? unsupported("it has no decomposition to keep in a composite")
        : partitioner_.is_local(call) ? replace_cudnn_attention(call, gradients_)
                                      : unsupported("the module is compiled for several partitions");
    if (problem.ok()) {
      changed = candidate.fused = true;
      candidate.reason = fmt::format("cuDNN's call {}", target);
      candidate.problem = print(*problem);
      candidate.score_mod = problem->score_mod ? print(*problem->score_mod) : "";
      candidate.mask_mod = problem->mask_mod ? print(*problem->mask_mod) : "";
    } else {
      candidate.reason = fmt::format("cuDNN's call {} stays: {}", target, problem.error().message);
    }
    candidates.push_back(std::move(candidate));
  }

  // A composite keeps the original, which is partitioned as before.
  Status replace(const LiftedAttention& found) {
    if (as_ == FuseAs::kComposite) {
      return rewrite(found, as_);
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const Split split, partitioner_.plan(found));
    FLASHLIFT_RETURN_IF_ERROR(rewrite(found, as_));
    return partitioner_.apply(split, *found.second_product->getBlock());
  }

  // Lifts the attention unchanged, or otherwise after one or more rearrangements, which are added to `rearranged`.
  Outcome<LiftedAttention> lift(mlir::Operation* product, std::vector<Rearrangement>& rearranged) {
    Outcome<LiftedAttention> found = lift_attention(product, gradients_, work_);
    first_products_ = work_.first_products;
    with_added_output_.reset();
    if (found.ok() || found.error().reason == Reason::kNoCandidate || found.error().reason == Reason::kTooMuchWork) {
      return found;
    }
    if (lift_unweighted(product, rearranged, found)) {
      return found;
    }
    for (const auto& add_missing : {add_missing_division, add_missing_output}) {
      const auto with_output = gradients_ ? add_missing(product) : std::nullopt;
      if (!with_output) {
        continue;
      }
      Outcome<LiftedAttention> again = lift_again(with_output->product);
      if (again.ok() && again->gradient) {
        rearranged.push_back(*with_output);
        return again;
      }
      if (!again.ok() && again.error().reason == Reason::kNotByGradient) {
        with_added_output_ = again.error();
      }
      stablehlo::take_back(*with_output);
      work_.forget();
    }
    if (const auto apart =
            found.error().reason == Reason::kNotByGradient ? sum_gradients_apart(product) : std::nullopt) {
      Outcome<LiftedAttention> again = lift_again(product);
      if (again.ok()) {
        rearranged.push_back(*apart);
        return again;
      }
      stablehlo::take_back(*apart);
      work_.forget();
    }
    for (const auto& rearrange : {move_weights_to_values, join_values, join_parts_of_keys}) {
      const auto other = rearrange(product);
      if (!other) {
        continue;
      }
      Outcome<LiftedAttention> again = lift_again(other->product);
      constexpr int64_t kFewestRows = 16;  // fewer rows do not justify copying keys and values
      const bool copies_too_much =
          again.ok() && rearrange != move_weights_to_values &&
          again->problem.q_len * (again->problem.q_heads / again->problem.kv_heads) < kFewestRows;
      if (again.ok() && !copies_too_much) {
        rearranged.push_back(*other);
        return again;
      }
      stablehlo::take_back(*other);
      work_.forget();
      if (copies_too_much && rearrange == join_parts_of_keys) {
        return refuse<Reason::kJoinCostsMore>(again->problem.q_len);
      }
    }
    if (has_parts_of_keys_read_elsewhere(product)) {
      return refuse<Reason::kJoinReadElsewhere>();
    }
    return found;
  }

  // Lifts a product that was created from another one.
  Outcome<LiftedAttention> lift_again(mlir::Operation* product) {
    work_.forget();
    return lift_attention(product, gradients_, work_);
  }

  // Moves all weights of rows (there may be several) to the output. If the lift then fails for another reason than the
  // weights, `found` receives that reason.
  bool lift_unweighted(mlir::Operation* product, std::vector<Rearrangement>& rearranged,
                       Outcome<LiftedAttention>& found) {
    constexpr size_t kMostWeights = 4;
    const Reason reason = found.error().reason;
    const bool was_of_weights =
        reason == Reason::kScaledRows || reason == Reason::kKeepFactor || reason == Reason::kClearedRows;
    while (rearranged.size() < kMostWeights) {
      auto other = move_weights_to_output(rearranged.empty() ? product : rearranged.back().product);
      if (!other) {
        break;
      }
      rearranged.push_back(*std::move(other));
      Outcome<LiftedAttention> again = lift_again(rearranged.back().product);
      if (again.ok() || was_of_weights) {
        found = std::move(again);
      }
      if (found.ok()) {
        return true;
      }
    }
    take_back(rearranged);
    return false;
  }

  void take_back(std::vector<Rearrangement>& rearranged) {
    for (; !rearranged.empty(); rearranged.pop_back()) {
      stablehlo::take_back(rearranged.back());
      work_.forget();
    }
  }

  bool reads_log_sum_exp(mlir::Operation* product) {
    const auto [known, is_new] = normalised_.try_emplace(product);
    if (is_new) {
      known->second = is_normalised_by_row(product);
    }
    return known->second;
  }

  // Adds the gradient, if a backward pass computes the scores again.
  void add_gradient(mlir::Operation* product, Outcome<LiftedAttention>& found, MergedProducts& merged) {
    mlir::Operation* const first = found.ok() ? found->first_product : work_.used_elsewhere;
    if (!gradients_ || first == nullptr || (found.ok() && found->gradient)) {
      return;
    }
    // The backward pass computes the probabilities from the log-sum-exp of the forward pass, or by a softmax of its own
    // while it reads the output of the forward pass.
    for (const auto barriers : {SameValues::Barriers::kIgnored, SameValues::Barriers::kKept}) {
      std::vector<mlir::Operation*> others;
      std::copy_if(products_.begin(), products_.end(), std::back_inserter(others), [&](mlir::Operation* other) {
        return !erased_.contains(other) && reads_log_sum_exp(other) == (barriers == SameValues::Barriers::kIgnored);
      });
      merged = merge_equal_products(first, others, barriers);
      if (!merged.empty() && lift_merged(product, found, merged, barriers)) {
        return;
      }
    }
  }

  bool lift_merged(mlir::Operation* product, Outcome<LiftedAttention>& found, MergedProducts& merged,
                   SameValues::Barriers barriers) {
    work_.forget();
    Outcome<LiftedAttention> again =
        found.ok() ? lift_with_gradient(*found, work_) : lift_attention(product, gradients_, work_);
    if (again.ok()) {
      found = std::move(again);
      return true;
    }
    stablehlo::take_back(merged);
    work_.forget();
    if (barriers == SameValues::Barriers::kIgnored) {
      for (mlir::Operation* other : merged.products) {
        work_.refused_gradients.try_emplace(other, again.error());
      }
      if (!found.ok()) {
        found = std::move(again);  // says what stands in the way of all that uses the scores
      }
    }
    merged = {};
    return false;
  }

  // The reason for the report. A product in the backward pass of an unfused attention refers to that attention,
  // whatever its own attempt failed with.
  std::string reason_of(mlir::Operation* product, const Refusal& refusal) {
    constexpr Reason kOfPairsThatAreNone[] = {
        Reason::kAcrossPlaces,    Reason::kReadAcrossPlaces, Reason::kNotUnderstood,    Reason::kComputesInF64,
        Reason::kReducesOverMore, Reason::kNoKeys,           Reason::kNoExponential,    Reason::kOwnWeights,
        Reason::kNotDivided,      Reason::kOwnWeightsInSum,  Reason::kOutputDimensions, Reason::kGradientOfValuesAlone,
        Reason::kProductBetween,
    };
    const std::string place = describe(product->getLoc());
    for (mlir::Operation* first : first_products_) {
      const auto known = of_repeated.find(describe(first->getLoc()));
      if (refusal.reason == Reason::kUsedElsewhere && known != of_repeated.end()) {
        return refuse<Reason::kStaysInBackwardPass>(known->second).text;
      }
      const auto [attention, is_new] = refused_.try_emplace(first, place);
      if (!is_new && attention->second != place && llvm::is_contained(kOfPairsThatAreNone, refusal.reason)) {
        return refuse<Reason::kOfAnother>(attention->second).text;
      }
    }
    if (const auto repeated = llvm::find_if(first_products_, [](auto* first) { return first->hasAttr(kRepeated); });
        repeated != first_products_.end()) {
      repeated_.emplace_back(describe((*repeated)->getLoc()), candidates.size());
    }
    return refusal.text;
  }

  // Whether an operand is e / sum e, without weights or a mask of its own, as add_missing_output() supposes.
  static bool has_plain_probabilities(mlir::Operation* product) {
    const auto source = [](mlir::Value value) {
      while (kind(value) == OpKind::kTranspose || kind(value) == OpKind::kConvert) {
        value = value.getDefiningOp()->getOperand(0);
      }
      return value;
    };
    return llvm::any_of(product->getOperands(), [&](mlir::Value operand) {
      const mlir::Value probabilities = source(operand);
      return kind(probabilities) == OpKind::kDivide &&
             kind(source(probabilities.getDefiningOp()->getOperand(0))) == OpKind::kExponential;
    });
  }

  // The gradient of values is told to need the output. If the other gradients show that this would not help, it gets
  // their reason. Called before `candidate`, of the refused product, is added.
  void correct_reasons_of_values(mlir::Operation* product, const Candidate& candidate, const Refusal& refusal) {
    for (mlir::Operation* first : first_products_) {
      if (refusal.reason == Reason::kGradientOfValuesAlone && candidate.reason == refusal.text &&
          has_plain_probabilities(product)) {
        of_values_.try_emplace(first, candidates.size());
      } else if (const auto of_values = of_values_.find(first); with_added_output_ && of_values != of_values_.end()) {
        candidates[of_values->second].reason = with_added_output_->text;
      }
    }
  }

  void visit(mlir::Operation* product) {
    Candidate candidate = candidate_at(product);
    std::vector<Rearrangement> rearranged;
    Outcome<LiftedAttention> found = lift(product, rearranged);
    MergedProducts merged;
    add_gradient(product, found, merged);
    if (!found.ok()) {
      if (found.error().reason == Reason::kNoCandidate) {
        return;
      }
      candidate.reason = reason_of(product, found.error());
      correct_reasons_of_values(product, candidate, found.error());
      candidates.push_back(std::move(candidate));
      return;
    }
    if (const auto number = found->first_product->getAttrOfType<mlir::IntegerAttr>(kRepeated);
        number && !found->gradient) {
      in_vain.insert(number.getInt());
    }
    work_.forget();  // the module changes from here on
    if (const Status status = replace(*found); !status.ok()) {
      candidate.reason = status.error().message;
      if (found->first_product->hasAttr(kRepeated)) {
        repeated_.emplace_back(describe(found->first_product->getLoc()), candidates.size());
      }
      stablehlo::take_back(merged);
      take_back(rearranged);
    } else {
      changed = candidate.fused = true;
      candidate.reason = found->summary;
      candidate.problem = print(found->problem);
      candidate.score_mod = found->problem.score_mod ? print(*found->problem.score_mod) : "";
      candidate.mask_mod = found->problem.mask_mod ? print(*found->problem.mask_mod) : "";
      std::vector<mlir::Operation*> unused;  // collected before erasing, since one may depend on another
      for (const Rearrangement& each : rearranged) {
        for (const auto& [original, result] : each.replaced) {
          unused.push_back(mlir::Value(original).getDefiningOp());
        }
      }
      for (const ResultView* result : results_of(*found)) {
        unused.push_back(mlir::Value(result->replaced).getDefiningOp());
      }
      unused.insert(unused.end(), merged.products.begin(), merged.products.end());
      for (mlir::Operation* op : unused) {
        erase_unused(op);
      }
    }
    candidates.push_back(std::move(candidate));
  }

  // Erases values that the call made unused at once, so that later attentions do not count them as other uses.
  void erase_unused(mlir::Operation* unused) {
    llvm::SmallVector<mlir::Operation*> pending = {unused};
    while (!pending.empty()) {
      mlir::Operation* op = pending.pop_back_val();
      if (op == nullptr || erased_.contains(op) || !op->use_empty() || !is_removable(op)) {
        continue;
      }
      op->walk([&](mlir::Operation* inner) {
        for (const mlir::Value operand : inner->getOperands()) {
          mlir::Operation* definition = operand.getDefiningOp();
          if (definition && !op->isAncestor(definition)) {
            pending.push_back(definition);
          }
        }
        note_origins(inner);
        erased_.insert(inner);
        if (work_.without_softmax) {
          work_.without_softmax->erase(inner);
        }
      });
      op->erase();
    }
  }

  void note_origins(mlir::Operation* op) {
    if (const auto origins = op->getAttrOfType<mlir::DenseI64ArrayAttr>(kOrigins)) {
      composites.insert(origins.asArrayRef().begin(), origins.asArrayRef().end());
    }
  }

  Module& module_;
  FuseAs as_;
  bool gradients_;
  Annotations annotations_;
  Partitioner partitioner_;
  Work work_;
  std::vector<Rearrangement> read_otherwise_;  // by read_products()
  std::vector<mlir::Operation*> products_;
  std::vector<mlir::Operation*> first_products_;           // those tried with the last product
  llvm::DenseMap<mlir::Operation*, std::string> refused_;  // first products and where their attention is
  std::vector<std::pair<std::string, size_t>> repeated_;   // places and candidates that stay, of repeated products
  std::optional<Refusal> with_added_output_;  // why the gradients do not follow from the last product's output
  llvm::DenseMap<mlir::Operation*, size_t> of_values_;  // first products and candidates that only lack the output
  llvm::DenseMap<mlir::Operation*, bool> normalised_;   // cached for first products
  llvm::DenseSet<mlir::Operation*> erased_;
};

// Fuses the attention in a module. Where a forward pass is repeated in vain, it stays as it was.
std::unique_ptr<Fuser> fuse_module(Module& module, const FuseOptions& options) {
  read_parts_from_operands(module);
  remove_dead_code(module);
  ComputationNumbers in_vain;
  ReasonsOfRepeated of_repeated;
  const bool has_gradients = options.gradients && options.as == FuseAs::kCustomCall;
  while (auto repeated = has_gradients ? with_forward_passes(module, in_vain) : std::nullopt) {
    auto fuser = std::make_unique<Fuser>(*repeated, options, of_repeated);
    fuser->run();
    ComputationNumbers left = repeated_in_vain(*repeated);
    left.merge(fuser->in_vain);
    if (left.empty()) {
      share_forward_passes(*repeated);
      module = *std::move(repeated);
      return fuser;
    }
    in_vain.insert(left.begin(), left.end());
    of_repeated.merge(fuser->of_repeated);
  }
  auto fuser = std::make_unique<Fuser>(module, options, std::move(of_repeated));
  fuser->run();
  return fuser;
}

// Numbers the composites, and gives each operation copied from a decomposition the list of the numbers it comes from.
Status inline_numbered_composites(Module& module, bool& any) {
  int64_t next = 0;
  mlir::Builder builder(module.context());
  module.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kComposite) {
      op->setDiscardableAttr(kComposite, builder.getI64IntegerAttr(next++));
    }
  });
  any = next > 0;
  return inline_composites(module, {}, [&](mlir::Operation* composite, mlir::Operation* copy) {
    const auto number = composite->getAttrOfType<mlir::IntegerAttr>(kComposite);
    copy->walk([&](mlir::Operation* op) {
      llvm::SmallVector<int64_t> origins;
      if (const auto known = op->getAttrOfType<mlir::DenseI64ArrayAttr>(kOrigins)) {
        origins.append(known.asArrayRef().begin(), known.asArrayRef().end());
      }
      origins.push_back(number.getInt());
      op->setDiscardableAttr(kOrigins, builder.getDenseI64ArrayAttr(origins));
    });
  });
}

// Inlines composites by the numbers of inline_numbered_composites, for the same module.
Status inline_only(Module& module, const std::set<int64_t>& numbers) {
  int64_t next = 0;
  module.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kComposite && numbers.contains(next++)) {
      op->setDiscardableAttr(kComposite, mlir::UnitAttr::get(module.context()));
    }
  });
  return inline_composites(module,
                           [](mlir::Operation* op) { return static_cast<bool>(op->getDiscardableAttr(kComposite)); });
}

// A module's bytes, owned by the caller or by this object.
class Source {
 public:
  explicit Source(std::string_view bytes) : bytes_(bytes) {}
  explicit Source(std::string&& own) : own_(std::move(own)), bytes_(own_) {}
  Source(const Source&) = delete;
  Source& operator=(const Source&) = delete;

  std::string_view bytes() const { return bytes_; }
  size_t size() const { return bytes_.size(); }
  std::string take() { return own_.empty() ? std::string(bytes_) : std::move(own_); }
  void free() { std::string().swap(own_); }

 private:
  std::string own_;
  std::string_view bytes_;
};

// Returns a module in which nothing was fused: unchanged, or in the requested format.
Result<std::string> in_other_form(Source& source, const FuseOptions& options, const Format& given,
                                  const Target& target) {
  if (options.emit.empty() || target.format == given) {
    return source.take();
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Module module, read_module(source.bytes(), options.name));
  source.free();
  return write_module(module, target.format, target.rule);
}

Result<FuseResult> fuse_on_this_stack(Source& source, const FuseOptions& options) {
  const Format given = format_of(source.bytes());
  FLASHLIFT_ASSIGN_OR_RETURN(const Target target, parse_target(options.emit, given));
  FLASHLIFT_ASSIGN_OR_RETURN(Module module, read_module(source.bytes(), options.name));
  remove_dead_code(module);  // a function that nobody calls may call itself, as XLA allows
  FLASHLIFT_RETURN_IF_ERROR(inline_calls(module));
  remove_dead_code(module);

  // Searches all composites for attention, but then, in a fresh copy, only inlines those that contain some: another
  // compiler may have its own implementation of the others.
  Module opened = module.clone();
  bool any_composites = false;
  FLASHLIFT_RETURN_IF_ERROR(inline_numbered_composites(opened, any_composites));
  remove_dead_code(opened);
  const std::unique_ptr<Fuser> fuser = fuse_module(opened, options);
  FuseResult result{{}, fuser->changed, std::move(fuser->candidates)};
  if (!result.changed && options.skip_unchanged) {
    return result;
  }
  if (!result.changed) {
    FLASHLIFT_ASSIGN_OR_RETURN(result.module, in_other_form(source, options, given, target));
    return result;
  }
  // Calls and programs are shorter than what they replace, and weights, which make modules large, keep their size.
  constexpr size_t kMore = size_t{1} << 16;
  const size_t expected_size = given.encoding == Encoding::kText ? 0 : source.size() + kMore;
  source.free();
  if (!any_composites) {
    FLASHLIFT_ASSIGN_OR_RETURN(result.module, write_module(opened, target.format, target.rule, expected_size));
    return result;
  }
  FLASHLIFT_RETURN_IF_ERROR(inline_only(module, fuser->composites));
  remove_dead_code(module);
  const std::unique_ptr<Fuser> again = fuse_module(module, options);
  FLASHLIFT_ASSIGN_OR_RETURN(result.module, write_module(module, target.format, target.rule, expected_size));
  result.candidates = std::move(again->candidates);
  return result;
}

Result<FuseResult> fuse_source(Source& source, const FuseOptions& options) {
  FLASHLIFT_RETURN_IF_ERROR(check_environment());
  const UncutByFork uncut;
  FLASHLIFT_RETURN_IF_ERROR(uncut.status());
  std::optional<Result<FuseResult>> result;
  FLASHLIFT_RETURN_IF_ERROR(run_on_own_stack([&] { result.emplace(fuse_on_this_stack(source, options)); }));
  if (result->ok()) {
    for (Candidate& candidate : (*result)->candidates) {  // both may quote the module's names
      candidate.location = printable_line(candidate.location);
      candidate.reason = printable_line(candidate.reason);
    }
  }
  return *std::move(result);
}

}  // namespace

const char* to_string(FuseAs as) { return as == FuseAs::kCustomCall ? "custom_call" : "composite"; }

size_t FuseResult::fused_count() const {
  return static_cast<size_t>(
      std::count_if(candidates.begin(), candidates.end(), [](const Candidate& c) { return c.fused; }));
}

Result<FuseResult> fuse(std::string_view module_bytes, const FuseOptions& options) {
  Source source(module_bytes);
  return fuse_source(source, options);
}

Result<FuseResult> fuse_and_free(std::string module_bytes, const FuseOptions& options) {
  Source source(std::move(module_bytes));
  return fuse_source(source, options);
}

}  // namespace flashlift::stablehlo
