#include <optional>

#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringMap.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using FuncOp = mlir::func::FuncOp;

constexpr llvm::StringLiteral kFrontendAttributes = "mhlo.frontend_attributes";

// Adds a call's frontend attributes, such as where it runs, to an operation that was copied for it. XLA's inliner does
// the same. The operation's own attributes count first.
void add_frontend_attributes(mlir::Operation* call, mlir::Operation* copy) {
  const auto of_call = call->getAttrOfType<mlir::DictionaryAttr>(kFrontendAttributes);
  if (!of_call) {
    return;
  }
  mlir::NamedAttrList all(of_call);
  if (const auto own = copy->getAttrOfType<mlir::DictionaryAttr>(kFrontendAttributes)) {
    for (const mlir::NamedAttribute& attribute : own) {
      all.set(attribute.getName(), attribute.getValue());
    }
  }
  copy->setAttr(kFrontendAttributes, all.getDictionary(copy->getContext()));
}

// Replaces operations that represent a function by the function's body. Visits callees before callers, so that each
// body is copied after the replacements in it.
class Inliner {
 public:
  // Returns the function's name if the operation is to be replaced.
  using Select = std::function<std::optional<llvm::StringRef>(mlir::Operation*)>;

  using OnCopy = std::function<void(mlir::Operation*, mlir::Operation*)>;

  Inliner(mlir::ModuleOp module, Select select, OnCopy on_copy = {})
      : select_(std::move(select)), on_copy_(std::move(on_copy)) {
    for (FuncOp function : module.getOps<FuncOp>()) {
      functions_[function.getName()] = function;
      state_[function].parts = count(function);
      total_ += state_[function].parts;
    }
  }

  Status run(mlir::ModuleOp module) {
    for (FuncOp function : llvm::make_early_inc_range(module.getOps<FuncOp>())) {
      FLASHLIFT_RETURN_IF_ERROR(visit(function, 0));
    }
    return {};
  }

 private:
  struct State {
    enum { kNew, kOpen, kDone } progress = kNew;
    size_t parts = 0;
    int depth = 0;  // nesting depth of its regions
  };

  static size_t count(mlir::Operation* op) {
    size_t parts = 0;
    op->walk([&](mlir::Operation* each) { parts += 1 + each->getNumOperands() + each->getNumResults(); });
    return parts;
  }

  Status visit(FuncOp function, int call_depth) {
    if (state_[function].progress == State::kDone) {
      return {};
    }
    if (call_depth > kMaxCallDepth) {
      return unsupported("{}: calls nested more than {} deep", describe(function.getLoc()), kMaxCallDepth);
    }
    state_[function].progress = State::kOpen;
    llvm::SmallVector<std::pair<mlir::Operation*, FuncOp>> sites;
    int own_depth = 0;
    function.walk([&](mlir::Operation* op) {
      own_depth = std::max(own_depth, depth_in(op, function));
      if (const std::optional<llvm::StringRef> name = select_(op)) {
        const auto callee = functions_.find(*name);
        sites.push_back({op, callee == functions_.end() ? FuncOp() : callee->second});
      }
    });
    state_[function].depth = own_depth;
    for (const auto& [site, callee] : sites) {
      FLASHLIFT_RETURN_IF_ERROR(replace(function, site, callee, call_depth));
    }
    state_[function].progress = State::kDone;
    return {};
  }

  static int depth_in(mlir::Operation* op, mlir::Operation* function) {
    int depth = 0;
    for (; op != function; op = op->getParentOp()) {
      ++depth;
    }
    return depth;
  }

  Status replace(FuncOp caller, mlir::Operation* site, FuncOp callee, int call_depth) {
    if (!callee) {
      return kind(site) == OpKind::kComposite
                 ? invalid_argument("{}: the decomposition '{}' is not a function of the module",
                                    describe(site->getLoc()), composite(site)->decomposition)
                 : Status();  // the function belongs to a nested module
    }
    if (callee.isExternal()) {
      return {};
    }
    if (state_[callee].progress == State::kOpen) {
      return unsupported("{}: '{}' calls itself; StableHLO needs no recursion: use stablehlo.while",
                         describe(site->getLoc()), callee.getName().str());
    }
    FLASHLIFT_RETURN_IF_ERROR(visit(callee, call_depth + 1));
    const mlir::FunctionType type = callee.getFunctionType();
    if (site->getOperandTypes() != type.getInputs() || site->getResultTypes() != type.getResults()) {
      return invalid_argument("{}: '{}' has other operand or result types than the function '{}'",
                              describe(site->getLoc()), site->getName().getStringRef().str(), callee.getName().str());
    }
    State& state = state_[caller];
    const State& inner = state_[callee];
    total_ += inner.parts;
    state.parts += inner.parts;
    state.depth = std::max(state.depth, depth_in(site, caller) + inner.depth);
    if (total_ > kMaxParts || state.depth > kMaxCallDepth) {
      return unsupported(
          "{}: inlining all calls gives more than {} operations, operands and results, or regions more than {} deep",
          describe(site->getLoc()), kMaxParts, kMaxCallDepth);
    }
    copy_body(site, callee);
    return {};
  }

  void copy_body(mlir::Operation* site, FuncOp callee) const {
    mlir::Block& body = callee.getBody().front();
    mlir::IRMapping mapping;
    mapping.map(body.getArguments(), site->getOperands());
    mlir::OpBuilder builder(site);
    for (mlir::Operation& op : body.without_terminator()) {
      mlir::Operation* copy = builder.clone(op, mapping);
      add_frontend_attributes(site, copy);
      if (on_copy_) {
        on_copy_(site, copy);
      }
    }
    for (auto [result, returned] : llvm::zip(site->getResults(), body.getTerminator()->getOperands())) {
      result.replaceAllUsesWith(mapping.lookup(returned));
    }
    site->erase();
  }

  Select select_;
  OnCopy on_copy_;
  llvm::StringMap<FuncOp> functions_;
  llvm::DenseMap<mlir::Operation*, State> state_;
  size_t total_ = 0;
};

}  // namespace

Status inline_calls(Module& module) {
  return Inliner(module.op(),
                 [](mlir::Operation* op) -> std::optional<llvm::StringRef> {
                   auto call = mlir::dyn_cast<mlir::func::CallOp>(op);
                   return call ? std::optional(call.getCallee()) : std::nullopt;
                 })
      .run(module.op());
}

Status inline_composites(Module& module, const std::function<bool(mlir::Operation*)>& wanted,
                         const std::function<void(mlir::Operation* composite, mlir::Operation* copy)>& on_copy) {
  const auto select = [&wanted](mlir::Operation* op) -> std::optional<llvm::StringRef> {
    if (kind(op) != OpKind::kComposite || (wanted && !wanted(op))) {
      return std::nullopt;
    }
    const std::string_view name = composite(op)->decomposition;
    return llvm::StringRef(name.data(), name.size());
  };
  return Inliner(module.op(), select, on_copy).run(module.op());
}

}  // namespace flashlift::stablehlo
