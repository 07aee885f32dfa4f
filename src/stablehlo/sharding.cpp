#include "stablehlo/sharding.h"

#include <algorithm>
#include <charconv>

#include "fmt/format.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinOps.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

// Reads the text of Shardy's attributes.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool take(std::string_view word) {
    text_.remove_prefix(std::min(text_.find_first_not_of(" \n\t"), text_.size()));
    if (!text_.starts_with(word)) {
      return false;
    }
    text_.remove_prefix(word.size());
    return true;
  }

  std::optional<std::string> quoted() {
    if (!take("\"")) {
      return std::nullopt;
    }
    const size_t end = text_.find('"');
    if (end == std::string_view::npos || text_.substr(0, end).find('\\') != std::string_view::npos) {
      return std::nullopt;
    }
    std::string word(text_.substr(0, end));
    text_.remove_prefix(end + 1);
    return word;
  }

  // The text up to a comma or bracket, which remains unread.
  std::string_view word() {
    const size_t end = std::min(text_.find_first_of(", >]"), text_.size());
    const std::string_view word = text_.substr(0, end);
    text_.remove_prefix(end);
    return word;
  }

  std::optional<int64_t> number() {
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text_.data(), text_.data() + text_.size(), value);
    if (error != std::errc()) {
      return std::nullopt;
    }
    text_.remove_prefix(static_cast<size_t>(end - text_.data()));
    return value;
  }

 private:
  std::string_view text_;
};

// The axes between the braces of a dimension. Skips its priority.
std::optional<std::vector<std::string>> scan_axes(Scanner& scanner) {
  std::vector<std::string> axes;
  if (!scanner.take("{")) {
    return std::nullopt;
  }
  while (!scanner.take("}")) {
    if (scanner.take("?") || scanner.take(",")) {
      continue;  // marks a dimension as open: the partitioner may add axes
    }
    const auto axis = scanner.quoted();
    if (!axis || scanner.take(":")) {  // a sub-axis
      return std::nullopt;
    }
    axes.push_back(*axis);
  }
  if (scanner.take("p") && !scanner.number()) {
    return std::nullopt;
  }
  return axes;
}

// <@mesh, [{"x"}, {}], replicated={"y"}>
std::optional<Sharding> scan_sharding(Scanner& scanner) {
  Sharding sharding;
  if (!scanner.take("<") || !scanner.take("@")) {
    return std::nullopt;
  }
  sharding.mesh = scanner.word();
  if (!scanner.take(",") || !scanner.take("[")) {
    return std::nullopt;
  }
  while (!scanner.take("]")) {
    if (scanner.take(",")) {
      continue;
    }
    auto axes = scan_axes(scanner);
    if (!axes) {
      return std::nullopt;
    }
    sharding.dims.push_back(*std::move(axes));
  }
  // Replicated axes split nothing and can be ignored. Unreduced axes are not supported.
  const bool has_replicated = scanner.take(",") && scanner.take("replicated") && scanner.take("=");
  if (has_replicated && !scan_axes(scanner)) {
    return std::nullopt;
  }
  return scanner.take(">") ? std::optional(sharding) : std::nullopt;
}

bool is_call_of(mlir::Operation* op, std::string_view target) {
  const auto call = custom_call(op);
  return call && call->target == target && op->getNumOperands() == 1 && op->getNumResults() == 1;
}

// Whether the annotation is at the border of a region that GSPMD does not partition: the calls on both sides of the
// border belong together.
bool is_at_border(mlir::Operation* annotation) {
  return llvm::any_of(annotation->getUsers(), [](mlir::Operation* user) {
    return is_full_to_shard_call(user) || is_call_of(user, "SPMDShardToFullShape");
  });
}

}  // namespace

bool Sharding::splits() const {
  return std::any_of(dims.begin(), dims.end(), [](const auto& axes) { return !axes.empty(); });
}

std::optional<Sharding> parse_sharding(std::string_view text) {
  Scanner scanner(text);
  return scanner.take("sharding") ? scan_sharding(scanner) : std::nullopt;
}

std::vector<Sharding> parse_shardings(std::string_view text) {
  Scanner scanner(text);
  std::vector<Sharding> shardings;
  if (!scanner.take("sharding_per_value") || !scanner.take("<") || !scanner.take("[")) {
    return {};
  }
  while (!scanner.take("]")) {
    if (scanner.take(",")) {
      continue;
    }
    auto sharding = scan_sharding(scanner);
    if (!sharding) {
      return {};
    }
    shardings.push_back(*std::move(sharding));
  }
  return shardings;
}

std::vector<std::string> parse_manual_axes(std::string_view text) {
  Scanner scanner(text);
  return scanner.take("manual_axes") ? scan_axes(scanner).value_or(std::vector<std::string>())
                                     : std::vector<std::string>();
}

std::string print(const Sharding& sharding) {
  std::string text = fmt::format("<@{}, [", sharding.mesh);
  for (size_t i = 0; i < sharding.dims.size(); ++i) {
    text += i == 0 ? "{" : ", {";
    for (size_t j = 0; j < sharding.dims[i].size(); ++j) {
      text += fmt::format("{}\"{}\"", j == 0 ? "" : ", ", sharding.dims[i][j]);
    }
    text += "}";
  }
  return text + "]>";
}

std::optional<std::vector<MeshAxis>> parse_mesh(std::string_view text) {
  Scanner scanner(text);
  if (!scanner.take("mesh") || !scanner.take("<") || !scanner.take("[")) {
    return std::nullopt;
  }
  std::vector<MeshAxis> axes;
  while (!scanner.take("]")) {
    if (scanner.take(",")) {
      continue;
    }
    const auto name = scanner.quoted();
    const auto size = name && scanner.take("=") ? scanner.number() : std::nullopt;
    if (!size || *size < 1) {
      return std::nullopt;
    }
    axes.push_back({*name, *size});
  }
  return axes;
}

bool is_sharding_call(mlir::Operation* op) {
  return is_call_of(op, "Sharding") && op->getOperand(0).getType() == op->getResult(0).getType();
}

bool is_full_to_shard_call(mlir::Operation* op) { return is_call_of(op, "SPMDFullToShardShape"); }

bool is_annotation(mlir::Operation* op) {
  return kind(op) == OpKind::kSdyShardingConstraint || kind(op) == OpKind::kSdyReshard || is_sharding_call(op);
}

bool has_annotated_results(mlir::Operation* op) { return op->hasAttr("sdy.sharding") || op->hasAttr("mhlo.sharding"); }

void Annotations::open(Module& module) {
  std::vector<mlir::Operation*> annotations;
  module.op()->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    if (is_annotation(op) && !is_at_border(op)) {
      annotations.push_back(op);
    }
  });
  for (mlir::Operation* annotation : annotations) {
    mlir::Value operand = annotation->getOperand(0);
    mlir::Value result = annotation->getResult(0);
    mlir::OpBuilder builder(annotation);
    mlir::Operation* placeholder = mlir::UnrealizedConversionCastOp::create(
        builder, annotation->getLoc(), mlir::TypeRange(operand.getType()), mlir::ValueRange());
    Opened opened{.annotation = annotation,
                  .placeholder = placeholder,
                  .uses = {},
                  .operand = Original(operand),
                  .reshaped = {},
                  .type = operand.getType()};
    if (mlir::Operation* reshape = defining(operand, OpKind::kReshape)) {
      opened.reshaped.emplace(reshape->getOperand(0));
    }
    for (mlir::OpOperand& use : result.getUses()) {
      opened.uses.push_back({use.getOwner(), use.getOperandNumber(), !use.getOwner()->use_empty()});
    }
    if (const mlir::Attribute sharding = annotation->getAttr("sharding")) {
      known_[operand] = sharding;
    }
    annotation->setOperand(0, placeholder->getResult(0));
    result.replaceAllUsesWith(operand);
    opened_.push_back(std::move(opened));
  }
}

// Whether the user is erased, or nothing reads its result, since the call reads the value itself.
bool Annotations::is_replaced(const Use& use, const llvm::DenseSet<mlir::Operation*>& erased) {
  return erased.contains(use.user) || (use.was_read && use.user->use_empty());
}

void Annotations::close(const llvm::DenseSet<mlir::Operation*>& erased) {
  for (const Opened& opened : opened_) {
    // A value that replaced an annotated one, such as the call's result, gets its annotation.
    llvm::SmallVector<std::pair<mlir::Value, mlir::Operation*>> annotated;
    for (const Use& use : opened.uses) {
      if (is_replaced(use, erased) || use.operand >= use.user->getNumOperands()) {
        continue;
      }
      const mlir::Value value = use.user->getOperand(use.operand);
      if (value.getType() != opened.annotation->getResult(0).getType() ||
          (value.getDefiningOp() != nullptr && mlir::isa<mlir::UnrealizedConversionCastOp>(value.getDefiningOp()))) {
        continue;
      }
      auto* known = llvm::find_if(annotated, [&](const auto& each) { return each.first == value; });
      if (known == annotated.end()) {
        mlir::Operation* annotation = annotated.empty() ? opened.annotation : opened.annotation->clone();
        annotation->setOperand(0, value);
        mlir::OpBuilder builder(use.user->getContext());
        builder.setInsertionPointAfterValue(value);
        annotation->remove();
        builder.insert(annotation);
        annotated.emplace_back(value, annotation);
        known = std::prev(annotated.end());
      }
      use.user->setOperand(use.operand, known->second->getResult(0));
    }
    if (annotated.empty()) {
      annotate_new_uses(opened, erased);
    }
  }
}

// If the annotated uses of a value no longer exist, such as the products of an attention: the operations that read it
// in their place, such as the call, get the annotation. They may read a reshape of their own.
void Annotations::annotate_new_uses(const Opened& opened, const llvm::DenseSet<mlir::Operation*>& erased) {
  if (llvm::none_of(opened.uses, [&](const Use& use) { return is_replaced(use, erased); })) {
    return;
  }
  llvm::SmallVector<mlir::OpOperand*> uses = opened.operand.new_uses(opened.annotation, erased);
  mlir::Value value = uses.empty() ? mlir::Value() : uses.front()->get();
  if (uses.empty() && opened.reshaped) {
    for (mlir::OpOperand* use : opened.reshaped->new_uses(opened.annotation, erased)) {
      mlir::Operation* const reshape = use->getOwner();
      if (kind(reshape) == OpKind::kReshape && reshape->getResult(0).getType() == opened.type) {
        value = reshape->getResult(0);
        for (mlir::OpOperand& other : value.getUses()) {
          uses.push_back(&other);
        }
        break;
      }
    }
  }
  if (uses.empty()) {
    return;
  }
  mlir::Operation* const annotation = opened.annotation;
  annotation->setOperand(0, value);
  mlir::OpBuilder builder(annotation->getContext());
  builder.setInsertionPointAfterValue(value);
  annotation->remove();
  builder.insert(annotation);
  for (mlir::OpOperand* use : uses) {
    use->set(annotation->getResult(0));
  }
}

Annotations::Original::Original(mlir::Value of)
    : value(of), source(of.getDefiningOp() ? of.getDefiningOp() : of.getParentBlock()->getParentOp()) {
  users.insert(of.user_begin(), of.user_end());
}

llvm::SmallVector<mlir::OpOperand*> Annotations::Original::new_uses(
    mlir::Operation* annotation, const llvm::DenseSet<mlir::Operation*>& erased) const {
  llvm::SmallVector<mlir::OpOperand*> uses;
  if (erased.contains(source)) {
    return uses;
  }
  mlir::Value read = value;  // MLIR's handles have non-const members
  for (mlir::OpOperand& use : read.getUses()) {
    mlir::Operation* const user = use.getOwner();
    mlir::Operation* const there = annotation->getBlock()->findAncestorOpInBlock(*user);
    if (there != nullptr && there->isBeforeInBlock(annotation)) {
      continue;
    }
    if (!users.contains(user) || erased.contains(user)) {  // (a new one may be where an erased one was)
      uses.push_back(&use);
    }
  }
  return uses;
}

void Annotations::remove_unused() {
  for (const Opened& opened : opened_) {
    if (opened.placeholder->use_empty()) {
      opened.placeholder->erase();
    } else if (opened.annotation->use_empty()) {
      opened.annotation->erase();
      opened.placeholder->erase();
    }
  }
  opened_.clear();
}

}  // namespace flashlift::stablehlo
