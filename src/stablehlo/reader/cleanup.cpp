#include "llvm/ADT/DenseMap.h"
#include "llvm/ADT/StringExtras.h"
#include "llvm/ADT/StringSet.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/Interfaces/SideEffectInterfaces.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"

namespace flashlift::stablehlo {
namespace {

using FuncOp = mlir::func::FuncOp;

// Users come after the operations that they use, so that one walk from the end finds all unused ones.
void remove_unused(mlir::Block& block) {
  for (mlir::Operation& op : llvm::make_early_inc_range(llvm::reverse(block))) {
    if (op.use_empty() && (is_removable(&op) || mlir::isOpTriviallyDead(&op))) {
      op.erase();
      continue;
    }
    for (mlir::Region& region : op.getRegions()) {
      for (mlir::Block& inner : region) {
        remove_unused(inner);
      }
    }
  }
}

// Collects the symbol names that operations mention. Attributes of unknown dialects are kept as text, in which any
// "@name" counts.
class Mentions {
 public:
  // Visits an operation and those nested in it. Returns the new names.
  llvm::SmallVector<llvm::StringRef> add(mlir::Operation* root) {
    llvm::SmallVector<llvm::StringRef> fresh;
    const auto visit = [&](mlir::Attribute attribute) {
      if (const auto symbol = mlir::dyn_cast<mlir::SymbolRefAttr>(attribute)) {
        insert(symbol.getRootReference().getValue(), fresh);
      } else if (const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(attribute)) {
        insert_from_text(opaque.getAttrData(), fresh);
      }
    };
    root->walk([&](mlir::Operation* op) {
      op->getDiscardableAttrDictionary().walk(visit);
      if (mlir::Attribute properties = op->getPropertiesAsAttribute()) {
        properties.walk(visit);
      }
    });
    return fresh;
  }

 private:
  void insert(llvm::StringRef name, llvm::SmallVector<llvm::StringRef>& fresh) {
    const auto [entry, inserted] = names_.insert(name);
    if (inserted) {
      fresh.push_back(entry->getKey());
    }
  }

  void insert_from_text(llvm::StringRef text, llvm::SmallVector<llvm::StringRef>& fresh) {
    for (size_t at = text.find('@'); at != llvm::StringRef::npos; at = text.find('@')) {
      text = text.drop_front(at + 1);
      if (text.consume_front("\"")) {
        insert(text.take_until([](char c) { return c == '"'; }), fresh);
      } else {
        insert(text.take_while([](char c) { return llvm::isAlnum(c) || c == '_' || c == '.' || c == '$' || c == '-'; }),
               fresh);
      }
    }
  }

  llvm::StringSet<> names_;
};

void remove_unused_functions(mlir::ModuleOp module) {
  llvm::SmallVector<mlir::Operation*> reached;
  llvm::DenseMap<llvm::StringRef, mlir::Operation*> unreached;
  for (mlir::Operation& op : module.getOps()) {
    auto function = mlir::dyn_cast<FuncOp>(op);
    if (function && function.isPrivate()) {
      unreached[function.getName()] = &op;
    } else {
      reached.push_back(&op);
    }
  }
  Mentions mentions;
  while (!reached.empty() && !unreached.empty()) {
    for (const llvm::StringRef name : mentions.add(reached.pop_back_val())) {
      if (const auto found = unreached.find(name); found != unreached.end()) {
        reached.push_back(found->second);
        unreached.erase(found);
      }
    }
  }
  for (auto& [name, op] : unreached) {
    op->erase();
  }
}

}  // namespace

void remove_dead_code(Module& module) {
  remove_unused_functions(module.op());
  remove_unused(*module.op().getBody());
  // The removed operations may have been the last to name a function.
  remove_unused_functions(module.op());
}

}  // namespace flashlift::stablehlo
