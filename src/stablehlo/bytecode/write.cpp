#include "stablehlo/bytecode/write.h"

#include <algorithm>

#include "mlir/Bytecode/BytecodeWriter.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/IRMapping.h"
#include "stablehlo/bytecode/to_vhlo.h"
#include "stablehlo/bytecode/vhlo_dialect.h"
#include "stablehlo/reader/op_table.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace bytecode {
namespace {

std::string_view view(llvm::StringRef text) { return {text.data(), text.size()}; }

// From this version on, other dialects may be mixed with VHLO.
constexpr Version kMixed = {1, 11, 0};
constexpr Version kDictionaryConfig = {1, 3, 0};

// The bytecode format's version that each consumer of this StableHLO version can read.
int64_t bytecode_version(const Version& version) {
  if (version < Version{0, 10, 0}) {
    return 0;
  }
  if (version < Version{0, 12, 0}) {
    return 1;
  }
  if (version < Version{0, 14, 0}) {
    return 3;
  }
  return version < Version{0, 15, 0} ? 4 : 6;
}

Result<std::string> to_bytes(mlir::Operation* op, const std::string& producer, int64_t version, size_t expected_size) {
  mlir::BytecodeWriterConfig config(producer);
  config.setDesiredBytecodeVersion(version);
  std::string bytes;
  bytes.reserve(expected_size);  // avoids a reallocation, during which the text would be in memory twice
  llvm::raw_string_ostream stream(bytes);
  if (mlir::failed(mlir::writeBytecodeToFile(op, stream, config))) {
    return internal_error("MLIR does not write the module as bytecode of version {}", version);
  }
  return bytes;
}

// Attributes of an operation that are not its own, which are kept beside VHLO's.
std::vector<mlir::NamedAttribute> foreign_attributes(mlir::Operation* op) {
  const OpInfo* info = find_op(view(op->getName().getStringRef()));
  std::vector<mlir::NamedAttribute> found;
  for (const mlir::NamedAttribute& attribute : op->getDiscardableAttrs()) {
    const std::string_view name = view(attribute.getName().getValue());
    if (info == nullptr || !std::binary_search(info->attributes.begin(), info->attributes.end(), name)) {
      found.push_back(attribute);
    }
  }
  return found;
}

class VhloWriter {
 public:
  VhloWriter(const Module& module, Version asked, VersionRule rule, size_t expected_size)
      : module_(module), version_(asked), rule_(rule), expected_size_(expected_size), builder_(module.context()) {}

  Result<std::string> run() {
    if (version_ < kOldest || Version{version_.major, version_.minor, 0} > kNewest) {
      return invalid_argument("VHLO of version {} is not known; give one of {} to {}", print(version_), print(kOldest),
                              print(kNewest));
    }
    load_vhlo(module_.context());
    FLASHLIFT_RETURN_IF_ERROR(find_version());
    mlir::OwningOpRef<mlir::ModuleOp> made = mlir::ModuleOp::create(module_.op().getLoc());
    made->getOperation()->setAttrs(module_.op()->getAttrDictionary());
    builder_.setInsertionPointToStart(made->getBody());
    mlir::IRMapping values;
    for (mlir::Operation& op : *module_.op().getBody()) {
      FLASHLIFT_RETURN_IF_ERROR(convert(&op, values));
    }
    return to_bytes(made->getOperation(), "StableHLO_v" + print(version_), bytecode_version(version_), expected_size_);
  }

 private:
  // The oldest version that can express the whole module.
  Status find_version() {
    Status status;
    const auto check = [&](mlir::Operation* op) {
      status = need(op);
      return status.ok() ? mlir::WalkResult::advance() : mlir::WalkResult::interrupt();
    };
    for (mlir::Operation& op : *module_.op().getBody()) {
      if (op.walk<mlir::WalkOrder::PreOrder>(check).wasInterrupted()) {
        return status;
      }
    }
    if (needed_ > version_) {
      if (rule_ == VersionRule::kExactly) {
        return unsupported("{}; ask for VHLO of version {} or a later one", reason_, print(needed_));
      }
      version_ = needed_;
    }
    return {};
  }

  void need(const Version& version, mlir::Operation* op, std::string_view what) {
    if (version > needed_) {
      needed_ = version;
      reason_ = fmt::format("{}: {} of '{}' is not in version {} of StableHLO", describe(op->getLoc()), what,
                            view(op->getName().getStringRef()), print(version_));
    }
  }

  Status need(mlir::Operation* op) {
    const std::string_view name = view(op->getName().getStringRef());
    if (!has_vhlo_form(op)) {
      if (op->getNumRegions() > 0) {
        return unsupported("{}: VHLO has no form for '{}', which has regions; ask for text or for bytecode",
                           describe(op->getLoc()), name);
      }
      need(kMixed, op, "the dialect");
      return need_types(op, op->getResultTypes());
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const VhloForm form, to_vhlo(op));
    need(oldest_that_fits(form).since, op, "this form");
    for (size_t i = 0; i < form.attributes.size(); ++i) {
      const VhloAttribute& attribute = form.newest->attributes[i];
      if (attribute.name == "backend_config" && mlir::isa<mlir::DictionaryAttr>(form.attributes[i])) {
        need(kDictionaryConfig, op, "a dictionary as backend_config");
      }
      // If an older version lacks this attribute, its value is neutral and requires no version.
      if (attribute.kind == AttributeKind::kAlgorithm || attribute.default_value == "accuracy") {
        continue;
      }
      if (attribute.name == "arg_attrs" || attribute.name == "res_attrs") {
        FLASHLIFT_RETURN_IF_ERROR(need_dictionaries(op, form.attributes[i]));
        continue;
      }
      const std::optional<Version> version = version_of(form.attributes[i]);
      if (!version) {
        return unsupported("{}: VHLO has no form for the attribute '{}' of '{}'; ask for text or for bytecode",
                           describe(op->getLoc()), attribute.name, name);
      }
      need(*version, op, fmt::format("the attribute '{}'", attribute.name));
    }
    for (const mlir::NamedAttribute& attribute : foreign_attributes(op)) {
      need_foreign(op, attribute.getValue());
    }
    for (mlir::Region& region : op->getRegions()) {
      for (mlir::Block& block : region) {
        FLASHLIFT_RETURN_IF_ERROR(need_types(op, block.getArgumentTypes()));
      }
    }
    return need_types(op, op->getResultTypes());
  }

  // Checks the dictionaries of a function's arguments and results. Their values from other dialects are unchanged.
  Status need_dictionaries(mlir::Operation* op, mlir::Attribute attribute) {
    const auto list = mlir::dyn_cast<mlir::ArrayAttr>(attribute);
    if (!list || !llvm::all_of(list, [](mlir::Attribute each) { return mlir::isa<mlir::DictionaryAttr>(each); })) {
      return invalid_argument("{}: expected a dictionary for each argument and result of a function",
                              describe(op->getLoc()));
    }
    for (const mlir::Attribute each : list) {
      for (const mlir::NamedAttribute& named : mlir::cast<mlir::DictionaryAttr>(each)) {
        need_foreign(op, named.getValue());
      }
    }
    return {};
  }

  void need_foreign(mlir::Operation* op, mlir::Attribute value) {
    need(version_of(value).value_or(kMixed), op, "an attribute");
  }

  template <typename Types>
  Status need_types(mlir::Operation* op, const Types& types) {
    for (const mlir::Type type : types) {
      const std::optional<Version> version = version_of(type);
      if (!version) {
        return unsupported("{}: VHLO has no form for a type of '{}'; ask for text or for bytecode",
                           describe(op->getLoc()), view(op->getName().getStringRef()));
      }
      need(*version, op, "a type");
    }
    return {};
  }

  Status convert(mlir::Operation* op, mlir::IRMapping& values) {
    if (!has_vhlo_form(op)) {
      copy_foreign(op, values);
      return {};
    }
    FLASHLIFT_ASSIGN_OR_RETURN(const VhloForm form, to_vhlo(op));
    const VhloOp* target = find_vhlo_op(form.newest->name, version_);
    if (target == nullptr || !fits(*target, form)) {
      return internal_error("{}: no form of '{}' in version {}", describe(op->getLoc()),
                            view(op->getName().getStringRef()), print(version_));
    }
    mlir::OperationState state(op->getLoc(), fmt::format("vhlo.{}_v{}", target->name, target->version));
    for (const mlir::NamedAttribute& attribute : foreign_attributes(op)) {
      state.attributes.set(attribute.getName(), wrap_known(attribute.getValue()));
    }
    for (size_t i = 0; i < form.attributes.size(); ++i) {
      const std::string_view name = form.newest->attributes[i].name;
      const bool is_there =
          llvm::any_of(target->attributes, [&](const VhloAttribute& each) { return each.name == name; });
      if (is_there) {
        state.attributes.set(llvm::StringRef(name.data(), name.size()), wrap(form.attributes[i]));
      }
    }
    for (const mlir::Value operand : op->getOperands()) {
      state.operands.push_back(values.lookup(operand));
    }
    for (const mlir::Type type : op->getResultTypes()) {
      state.types.push_back(wrap(type));
    }
    for (unsigned i = 0; i < op->getNumRegions(); ++i) {
      (void)state.addRegion();
    }
    mlir::Operation* made = builder_.create(state);
    for (const auto [from, to] : llvm::zip(op->getResults(), made->getResults())) {
      values.map(from, to);
    }
    for (const auto [from, to] : llvm::zip(op->getRegions(), made->getRegions())) {
      FLASHLIFT_RETURN_IF_ERROR(convert_region(from, to, values));
    }
    return {};
  }

  Status convert_region(mlir::Region& from, mlir::Region& to, mlir::IRMapping& values) {
    for (mlir::Block& block : from) {
      mlir::Block& made = to.emplaceBlock();
      for (const mlir::BlockArgument argument : block.getArguments()) {
        values.map(argument, made.addArgument(wrap(argument.getType()), argument.getLoc()));
      }
      const mlir::OpBuilder::InsertionGuard guard(builder_);
      builder_.setInsertionPointToEnd(&made);
      for (mlir::Operation& op : block) {
        FLASHLIFT_RETURN_IF_ERROR(convert(&op, values));
      }
    }
    return {};
  }

  mlir::Value cast(mlir::Location location, mlir::Value value, mlir::Type type) {
    mlir::OperationState state(location, "builtin.unrealized_conversion_cast");
    state.addOperands(value);
    state.addTypes(type);
    return builder_.create(state)->getResult(0);
  }

  // Copies an operation of another dialect, whose values keep their own types.
  void copy_foreign(mlir::Operation* op, mlir::IRMapping& values) {
    mlir::IRMapping own;
    for (const mlir::Value operand : op->getOperands()) {
      if (!own.contains(operand)) {
        own.map(operand, cast(op->getLoc(), values.lookup(operand), operand.getType()));
      }
    }
    mlir::Operation* copy = builder_.clone(*op, own);
    put_attributes_in_dictionary(copy);
    for (const auto [from, to] : llvm::zip(op->getResults(), copy->getResults())) {
      values.map(from, cast(op->getLoc(), to, wrap(from.getType())));
    }
  }

 public:
  // MLIR writes properties of an unregistered operation in a form that consumers with the registered operation cannot
  // read.
  static void put_attributes_in_dictionary(mlir::Operation* op) {
    if (op->isRegistered()) {
      return;
    }
    if (const auto own = mlir::dyn_cast_or_null<mlir::DictionaryAttr>(op->getPropertiesAsAttribute())) {
      mlir::NamedAttrList all(own);
      for (const mlir::NamedAttribute& each : op->getDiscardableAttrs()) {
        all.set(each.getName(), each.getValue());
      }
      (void)op->setPropertiesFromAttribute(mlir::Attribute(), {});
      op->setDiscardableAttrs(all.getDictionary(op->getContext()));
    }
  }

 private:
  const Module& module_;
  Version version_, needed_ = kOldest;
  VersionRule rule_;
  size_t expected_size_;
  std::string reason_;
  mlir::OpBuilder builder_;
};

Result<std::string> write_plain(const Module& module, size_t expected_size) {
  const Module copy = module.clone();
  copy.op()->walk([](mlir::Operation* op) { VhloWriter::put_attributes_in_dictionary(op); });
  return to_bytes(copy.op(), "MLIR", bytecode_version(kNewest), expected_size);
}

}  // namespace
}  // namespace bytecode

Result<Target> parse_target(std::string_view text, const Format& given) {
  if (text.empty()) {
    // A consumer of a newer version than those known here can also read these.
    return Target{{given.encoding, std::clamp(given.version, bytecode::kOldest, bytecode::kNewest)},
                  VersionRule::kAtLeast};
  }
  if (text == "text") {
    return Target{{Encoding::kText}};
  }
  if (text == "bytecode") {
    return Target{{Encoding::kBytecode}};
  }
  if (text == "vhlo") {
    return Target{{Encoding::kVhlo, bytecode::kOldest}, VersionRule::kAtLeast};
  }
  constexpr std::string_view kVersioned = "vhlo=";
  if (text.starts_with(kVersioned)) {
    if (const auto version = bytecode::parse_version(text.substr(kVersioned.size()))) {
      return Target{{Encoding::kVhlo, *version}};
    }
  }
  return invalid_argument(
      "expected text, bytecode, vhlo or vhlo=VERSION as the form of the module, as in vhlo=1.9.0, got '{}'", text);
}

Result<std::string> write_module(const Module& module, const Format& format, VersionRule rule, size_t expected_size) {
  switch (format.encoding) {
    case Encoding::kText:
      return module.print();
    case Encoding::kBytecode:
      return bytecode::write_plain(module, expected_size);
    case Encoding::kVhlo:
      return bytecode::VhloWriter(module, format.version, rule, expected_size).run();
  }
  return internal_error("a format that does not exist");
}

}  // namespace flashlift::stablehlo
