#include "stablehlo/reader/module.h"

#include "llvm/Support/MemoryBuffer.h"
#include "llvm/Support/SourceMgr.h"
#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/Diagnostics.h"
#include "mlir/IR/DialectRegistry.h"
#include "mlir/IR/Location.h"
#include "mlir/IR/MLIRContext.h"
#include "mlir/IR/Verifier.h"
#include "mlir/Parser/Parser.h"
#include "stablehlo/reader/attribute_guard.h"
#include "stablehlo/reader/dialect.h"
#include "stablehlo/reader/op_table.h"
#include "stablehlo/reader/text_guard.h"
#include "stablehlo/reader/verify.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

// Separates an operation's own attributes (its properties) from discardable ones. The operation is then the same in the
// pretty form, the generic form, and the generic form from before properties existed.
void sort_attributes(mlir::Operation* op, const OpInfo& info) {
  mlir::NamedAttrList own;
  mlir::NamedAttrList discardable;
  const auto add = [&](mlir::DictionaryAttr dictionary) {
    for (const mlir::NamedAttribute& attribute : dictionary) {
      const llvm::StringRef name = attribute.getName().getValue();
      const bool is_own = std::binary_search(info.attributes.begin(), info.attributes.end(),
                                             std::string_view(name.data(), name.size()));
      (is_own ? own : discardable).set(attribute.getName(), attribute.getValue());
    }
  };
  const mlir::Attribute properties = op->getPropertiesAsAttribute();
  add(op->getDiscardableAttrDictionary());
  if (const auto dictionary = mlir::dyn_cast_or_null<mlir::DictionaryAttr>(properties)) {
    add(dictionary);
  }
  op->setDiscardableAttrs(discardable.getDictionary(op->getContext()));
  if (properties || !own.empty()) {
    // Cannot fail: only unregistered operations have properties here, and these may be any attribute.
    (void)op->setPropertiesFromAttribute(own.empty() ? mlir::Attribute() : own.getDictionary(op->getContext()), {});
  }
}

}  // namespace

Module::Module(std::shared_ptr<mlir::MLIRContext> context, mlir::OwningOpRef<mlir::ModuleOp> op, bool has_locations)
    : context_(std::move(context)), op_(std::move(op)), has_locations_(has_locations) {}
Module::Module(Module&&) noexcept = default;
Module& Module::operator=(Module&& other) noexcept {
  op_ = std::move(other.op_);
  context_ = std::move(other.context_);
  has_locations_ = other.has_locations_;
  return *this;
}
Module::~Module() = default;

Result<Module> Module::parse(std::string_view text, std::string_view name) {
  if (text.ends_with('\0')) {  // a C string whose size came from `sizeof`; MLIR's own parser stops there, too
    text.remove_suffix(1);
  }
  FLASHLIFT_RETURN_IF_ERROR(check_module_text(text, name));
  std::string storage;
  if (!pack_bool_constants(text, storage)) {
    storage.assign(text);  // MLIR's parser requires a zero byte after the text
  }
  std::shared_ptr<mlir::MLIRContext> context = make_context();
  const ErrorCollector errors(context.get());
  llvm::SourceMgr sources;
  sources.AddNewSourceBuffer(llvm::MemoryBuffer::getMemBuffer(storage, llvm::StringRef(name.data(), name.size()),
                                                              /*RequiresNullTerminator=*/true),
                             llvm::SMLoc());
  mlir::OwningOpRef<mlir::ModuleOp> op =
      mlir::parseSourceFile<mlir::ModuleOp>(sources, mlir::ParserConfig(context.get(), /*verifyAfterParse=*/false));
  if (!op) {
    return errors.error(name);
  }
  return adopt(context, std::move(op), text.find("loc(") != std::string_view::npos, name);
}

Result<Module> Module::adopt(const std::shared_ptr<mlir::MLIRContext>& context, mlir::OwningOpRef<mlir::ModuleOp> op,
                             bool has_locations, std::string_view name) {
  const ErrorCollector errors(context.get());
  FLASHLIFT_RETURN_IF_ERROR(check_attributes(*op));
  if (mlir::failed(mlir::verify(*op))) {
    return errors.error(name);
  }
  op->walk([](mlir::Operation* each) {
    const llvm::StringRef op_name = each->getName().getStringRef();
    if (const OpInfo* info = find_op({op_name.data(), op_name.size()})) {
      sort_attributes(each, *info);
    }
  });
  FLASHLIFT_RETURN_IF_ERROR(verify(*op));
  return Module(context, std::move(op), has_locations);
}

std::shared_ptr<mlir::MLIRContext> Module::make_context() {
  mlir::DialectRegistry registry;
  register_dialects(registry);
  // Without this, MLIR would start a thread for each core and module.
  auto context = std::make_shared<mlir::MLIRContext>(registry, mlir::MLIRContext::Threading::DISABLED);
  context->allowUnregisteredDialects();
  // Errors contain a position in the text instead of the operation, which may be very large once aliases are expanded.
  context->printOpOnDiagnostic(false);
  return context;
}

ErrorCollector::ErrorCollector(mlir::MLIRContext* context)
    : handler_(context, [this](mlir::Diagnostic& diagnostic) {
        if (diagnostic.getSeverity() == mlir::DiagnosticSeverity::Error && message_.empty()) {
          message_ = describe(diagnostic.getLocation()) + ": " + diagnostic.str();
        }
        return mlir::success();  // the error is stored, and MLIR prints nothing
      }) {}

Error ErrorCollector::error(std::string_view name) const {
  return invalid_argument("{}", message_.empty() ? std::string(name) + ": not a valid module" : message_);
}

Module Module::clone() const { return Module(context_, op().clone(), has_locations_); }

std::string Module::print() const {
  std::string text;
  llvm::raw_string_ostream stream(text);
  mlir::OpPrintingFlags flags;
  flags.enableDebugInfo(has_locations_);
  op().print(stream, flags);
  stream << '\n';
  return spell_bool_constants(std::move(text));
}

std::string describe(mlir::Location location) {
  std::string names;
  // Locations may be nested to any depth.
  for (int depth = 0; depth < 8; ++depth) {
    if (const auto file = mlir::dyn_cast<mlir::FileLineColLoc>(location)) {
      return fmt::format("{}{}:{}:{}", names, file.getFilename().str(), file.getLine(), file.getColumn());
    }
    if (const auto named = mlir::dyn_cast<mlir::NameLoc>(location)) {
      if (mlir::isa<mlir::UnknownLoc>(named.getChildLoc())) {
        return names + named.getName().str();
      }
      names += named.getName().str() + " at ";
      location = named.getChildLoc();
    } else if (const auto call = mlir::dyn_cast<mlir::CallSiteLoc>(location)) {
      location = call.getCallee();
    } else if (const auto fused = mlir::dyn_cast<mlir::FusedLoc>(location); fused && !fused.getLocations().empty()) {
      location = fused.getLocations().front();
    } else {
      break;
    }
  }
  return names.empty() ? "unknown location" : names + "unknown location";
}

}  // namespace flashlift::stablehlo
