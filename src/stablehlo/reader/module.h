// A StableHLO module in memory, and reading and printing one.
//
//   Result<Module> module = Module::parse(text, "model.mlir");
//   module->op().walk([](mlir::Operation* op) { if (kind(op) == OpKind::kDotGeneral) ... });
//
// Operations of stablehlo and chlo are *unregistered* operations: ask kind(op) and the accessors of ops.h. Both text
// forms give the same operations: an operation's own attributes lie in its property dictionary, where op->getAttr(name)
// finds them, too; every other attribute is discardable. parse() has verified what the accessors of ops.h rely on.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "flashlift/result.h"
#include "mlir/IR/BuiltinOps.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/OwningOpRef.h"

namespace mlir {
class MLIRContext;
}

namespace flashlift::stablehlo {

class Module {
 public:
  // Reads StableHLO's pretty form and MLIR's generic form, mixed as one likes. Errors: kInvalidArgument with
  // "name:line:column: ..." for text that is no valid module; kUnsupported for bytecode (see bytecode/read.h).
  static Result<Module> parse(std::string_view text, std::string_view name = "<module>");

  // For readers of other forms: a context with the dialects, and the module that was read into it. The module is
  // verified as one of text is; errors as of parse().
  static std::shared_ptr<mlir::MLIRContext> make_context();
  static Result<Module> adopt(const std::shared_ptr<mlir::MLIRContext>& context, mlir::OwningOpRef<mlir::ModuleOp> op,
                              bool has_locations, std::string_view name);

  Module(Module&&) noexcept;
  Module& operator=(Module&&) noexcept;
  ~Module();

  // A deep copy in the same context.
  Module clone() const;

  // A handle to the module, through which it may be changed.
  mlir::ModuleOp op() const { return op_.get(); }
  mlir::MLIRContext* context() const { return context_.get(); }

  // The module as text that JAX and XLA read: stablehlo in generic form, the rest in its own. Source locations are
  // printed if the text that was read had any.
  std::string print() const;

 private:
  Module(std::shared_ptr<mlir::MLIRContext> context, mlir::OwningOpRef<mlir::ModuleOp> op, bool has_locations);

  std::shared_ptr<mlir::MLIRContext> context_;  // before op_, which must go first
  mlir::OwningOpRef<mlir::ModuleOp> op_;
  bool has_locations_ = false;
};

// "model.mlir:12:5", or the names and files of a location that the text carried.
std::string describe(mlir::Location location);

// Collects the first error that MLIR reports in its lifetime; the following ones are mostly its consequences.
class ErrorCollector {
 public:
  explicit ErrorCollector(mlir::MLIRContext* context);

  bool has_error() const { return !message_.empty(); }
  Error error(std::string_view name) const;

 private:
  std::string message_;
  mlir::ScopedDiagnosticHandler handler_;
};

}  // namespace flashlift::stablehlo
