// A StableHLO module in memory, with functions to read and print it.
//
//     Result<Module> module = Module::parse(text, "model.mlir");
//     module->op().walk([](mlir::Operation* op) { if (kind(op) == OpKind::kDotGeneral) ... });
//
// Operations of stablehlo and chlo are *unregistered* operations: use kind(op) and the accessors of ops.h. Both text
// forms give the same operations: an operation's own attributes are in its property dictionary, in which
// op->getAttr(name) finds them, too; every other attribute is discardable. parse() verifies everything that the
// accessors of ops.h rely on.
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
  // Reads StableHLO's pretty form and MLIR's generic form in any mixture. Errors: kInvalidArgument with
  // "name:line:column: ..." for an invalid module; kUnsupported for bytecode (see bytecode/read.h).
  static Result<Module> parse(std::string_view text, std::string_view name = "<module>");

  // For readers of other formats: creates a context with the dialects, and adopts a module that was read into it. The
  // module is verified like one of text, with the same errors as parse().
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

  // The module as text for JAX and XLA: stablehlo in generic form, other dialects in their own. Source locations are
  // printed if the original text had any.
  std::string print() const;

 private:
  Module(std::shared_ptr<mlir::MLIRContext> context, mlir::OwningOpRef<mlir::ModuleOp> op, bool has_locations);

  std::shared_ptr<mlir::MLIRContext> context_;  // declared before op_, which must be destroyed first
  mlir::OwningOpRef<mlir::ModuleOp> op_;
  bool has_locations_ = false;
};

// "model.mlir:12:5", or the names and files in the location.
std::string describe(mlir::Location location);

// Collects the first error that MLIR reports during its lifetime; later errors usually follow from it.
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
