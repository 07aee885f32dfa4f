#include "stablehlo/bytecode/read.h"

#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "mlir/IR/Block.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Region.h"
#include "stablehlo/bytecode/attributes.h"
#include "stablehlo/bytecode/container.h"
#include "stablehlo/bytecode/from_vhlo.h"
#include "stablehlo/bytecode/properties.h"
#include "stablehlo/reader/text_meter.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace bytecode {
namespace {

constexpr std::string_view kPortableProducer = "StableHLO_v";

// How an operation name of the file is read.
struct OperationName {
  std::string name;
  const VhloOp* vhlo = nullptr;
  bool is_known = false;  // whether `properties` are known
  std::span<const Property> properties;
};

// Values visible in an operation's region, up to the next isolated region.
struct Scope {
  std::vector<mlir::Value> values;
  size_t next = 0;  // the index of the value that the innermost region defines next
};

class OperationReader {
 public:
  OperationReader(const Container& container, mlir::MLIRContext* context, Failure& failure)
      : container_(container), context_(context), failure_(failure), attributes_(container, context, failure) {}

  mlir::OwningOpRef<mlir::ModuleOp> read() {
    names_.resize(container_.operations.size());
    for (size_t i = 0; i < names_.size(); ++i) {
      make_name(container_.operations[i], names_[i]);
    }
    mlir::Block top;
    ByteReader reader = container_.ir.reader(failure_);
    Scope scope;
    read_block(reader, top, scope, "", 0);
    if (!reader.empty()) {
      failure_.invalid("byte {}: expected the end of the operations", reader.offset());
    }
    if (!failure_ && !(top.getOperations().size() == 1 && mlir::isa<mlir::ModuleOp>(top.front()))) {
      failure_.invalid("expected one builtin.module");
    }
    if (failure_) {
      return {};
    }
    auto module = mlir::cast<mlir::ModuleOp>(top.front());
    module->remove();
    return module;
  }

  bool has_locations() const { return has_locations_; }

 private:
  void make_name(const OperationEntry& entry, OperationName& made) {
    if (entry.dialect != "vhlo") {
      context_->getOrLoadDialect(llvm::StringRef(entry.dialect.data(), entry.dialect.size()));
      made.name = fmt::format("{}.{}", entry.dialect, entry.name);
      made.properties = properties_of(made.name, made.is_known);
      return;
    }
    made.vhlo = find_vhlo_op(entry.name);
    if (made.vhlo == nullptr) {
      failure_.unsupported(
          "'vhlo.{}' of {} is not an operation of versions {} to {}; write the module for one of them, or give it as "
          "text",
          entry.name, container_.producer, print(kOldest), print(kNewest));
      return;
    }
    context_->loadDialect<mlir::func::FuncDialect>();
    context_->getOrLoadDialect("stablehlo");
    const std::string_view name = made.vhlo->name;
    const bool is_function = name == "func" || name == "call";
    // vhlo.return is either func.return or stablehlo.return. read_operation decides which.
    made.name = fmt::format("{}.{}", is_function ? "func" : "stablehlo", name);
  }

  void read_block(ByteReader& reader, mlir::Block& block, Scope& scope, std::string_view parent, int depth) {
    bool has_arguments = false;
    const uint64_t operations = reader.varint_with_flag(has_arguments);
    if (has_arguments) {
      read_arguments(reader, block, scope);
    }
    for (uint64_t i = 0; i < operations && !failure_; ++i) {
      read_operation(reader, block, scope, parent, depth);
    }
  }

  void read_arguments(ByteReader& reader, mlir::Block& block, Scope& scope) {
    const size_t count = reader.count();
    for (size_t i = 0; i < count && !failure_; ++i) {
      bool has_location = true;
      const uint64_t type_index =
          container_.version >= kArgumentLocations ? reader.varint_with_flag(has_location) : reader.varint();
      const mlir::Type type = attributes_.type(type_index);
      const mlir::Location location =
          has_location ? read_location(reader) : mlir::Location(mlir::UnknownLoc::get(context_));
      if (type) {
        define(reader, scope, block.addArgument(type, location));
      }
    }
    if (container_.version >= kUseOrders && reader.byte() != 0) {
      skip_use_orders(reader, count);
    }
  }

  mlir::Location read_location(ByteReader& reader) {
    const mlir::Location location = attributes_.location(reader.varint());
    has_locations_ = has_locations_ || !mlir::isa<mlir::UnknownLoc>(location);
    return location;
  }

  void define(const ByteReader& reader, Scope& scope, mlir::Value value) {
    if (scope.next >= scope.values.size()) {
      failure_.invalid("byte {}: a region defines more values than it says", reader.offset());
    } else {
      scope.values[scope.next++] = value;
    }
  }

  // Skips the order of each value's uses, which has no meaning.
  void skip_use_orders(ByteReader& reader, size_t values) {
    const size_t listed = values > 1 ? reader.count() : 1;
    for (size_t i = 0; i < listed && !failure_; ++i) {
      if (values > 1) {
        (void)reader.varint();
      }
      bool is_pairs = false;
      for (uint64_t left = reader.varint_with_flag(is_pairs); left > 0 && !failure_; --left) {
        (void)reader.varint();
      }
    }
  }

  void read_operation(ByteReader& reader, mlir::Block& block, Scope& scope, std::string_view parent, int depth) {
    const size_t offset = reader.offset();
    if (++operations_ > kMaxCount) {
      failure_.unsupported("byte {}: the module has more than {} operations", offset, kMaxCount);
      return;
    }
    const uint64_t name_index = reader.varint();
    if (name_index >= names_.size()) {
      failure_.invalid("byte {}: there is no operation name {}", offset, name_index);
      return;
    }
    const OperationName& name = names_[name_index];
    const uint8_t mask = reader.byte();
    const mlir::Location location = read_location(reader);
    mlir::NamedAttrList discardable;
    mlir::NamedAttrList own;
    if ((mask & 1) != 0) {
      const auto dictionary = mlir::dyn_cast_or_null<mlir::DictionaryAttr>(attributes_.read_attribute(reader));
      if (!dictionary) {
        failure_.invalid("byte {}: expected an operation's attributes", offset);
        return;
      }
      discardable.append(dictionary.getValue());
    }
    if ((mask & 64) != 0) {
      read_properties(reader, name, container_.operations[name_index].is_registered, own);
    }
    llvm::SmallVector<mlir::Type> types;
    if ((mask & 2) != 0) {
      const size_t count = reader.count();
      for (size_t i = 0; i < count && !failure_; ++i) {
        types.push_back(attributes_.read_type(reader));
      }
    }
    llvm::SmallVector<mlir::Value> operands;
    if ((mask & 4) != 0) {
      const size_t count = reader.count();
      for (size_t i = 0; i < count && !failure_; ++i) {
        operands.push_back(read_operand(reader, scope));
      }
    }
    if ((mask & 8) != 0 && reader.count() != 0) {
      failure_.unsupported(
          "byte {}: '{}' has successors; StableHLO needs none: lower control flow to stablehlo.if, "
          "case or while",
          offset, name.name);
    }
    if ((mask & 32) != 0 && container_.version >= kUseOrders) {
      skip_use_orders(reader, types.size());
    }
    bool is_isolated = false;
    const uint64_t regions = (mask & 16) != 0 ? reader.varint_with_flag(is_isolated) : 0;
    if (regions > reader.left()) {
      failure_.invalid("byte {}: '{}' has {} regions in the {} bytes that are left", offset, name.name, regions,
                       reader.left());
    }
    if (name.vhlo != nullptr) {
      take_own(*name.vhlo, discardable, own);
      from_vhlo(*name.vhlo, own, context_, failure_);
    }
    if (failure_) {
      return;
    }
    if (is_cast(name, types, operands) && regions == 0) {
      define(reader, scope, operands.front());
      return;
    }
    const bool ends_function = name.name == "stablehlo.return" && name.vhlo != nullptr && parent == "func.func";
    mlir::Operation* op = create(ends_function ? "func.return" : name.name, location, types, operands, discardable, own,
                                 static_cast<unsigned>(regions));
    block.push_back(op);
    for (const mlir::Value result : op->getResults()) {
      define(reader, scope, result);
    }
    if (regions > 0) {
      read_regions(reader, *op, scope, is_isolated, name.name, depth + 1);
    }
  }

  // Whether the operation converts between a VHLO type and its builtin type, which are the same here.
  static bool is_cast(const OperationName& name, llvm::ArrayRef<mlir::Type> types,
                      llvm::ArrayRef<mlir::Value> operands) {
    return name.name == "builtin.unrealized_conversion_cast" && types.size() == 1 && operands.size() == 1 &&
           operands.front().getType() == types.front();
  }

  mlir::Operation* create(const std::string& name, mlir::Location location, llvm::ArrayRef<mlir::Type> types,
                          llvm::ArrayRef<mlir::Value> operands, const mlir::NamedAttrList& discardable,
                          const mlir::NamedAttrList& own, unsigned regions) {
    mlir::OperationState state(location, name);
    state.addTypes(types);
    state.addOperands(operands);
    // A registered operation takes its own attributes out of the list.
    state.attributes = discardable;
    if (state.name.isRegistered()) {
      for (const mlir::NamedAttribute& each : own) {
        state.attributes.set(each.getName(), each.getValue());
      }
    } else if (!own.empty()) {
      state.propertiesAttr = own.getDictionary(context_);
    }
    for (unsigned i = 0; i < regions; ++i) {
      (void)state.addRegion();
    }
    return mlir::Operation::create(state);
  }

  void read_regions(ByteReader& reader, mlir::Operation& op, Scope& scope, bool is_isolated, std::string_view name,
                    int depth) {
    if (depth > kMaxNesting) {
      failure_.unsupported("byte {}: regions are nested more than {} deep", reader.offset(), kMaxNesting);
      return;
    }
    Scope inner;
    if (!is_isolated || container_.version < kIsolatedSections) {
      for (mlir::Region& region : op.getRegions()) {
        read_region(reader, region, is_isolated ? inner : scope, name, depth);
      }
      return;
    }
    Range content;
    if (read_section(reader, content) != Section::kOperations) {
      failure_.invalid("byte {}: expected a section of operations", reader.offset());
    }
    ByteReader section = content.reader(failure_);
    for (mlir::Region& region : op.getRegions()) {
      read_region(section, region, inner, name, depth);
    }
    if (!section.empty()) {
      failure_.invalid("byte {}: expected the end of the operations of '{}'", section.offset(), name);
    }
  }

  void read_region(ByteReader& reader, mlir::Region& region, Scope& scope, std::string_view parent, int depth) {
    const uint64_t blocks = reader.varint();
    if (failure_ || blocks == 0) {
      return;
    }
    if (blocks != 1) {
      failure_.unsupported(
          "byte {}: '{}' has a region of {} blocks; StableHLO needs none of several: lower control "
          "flow to stablehlo.if, case or while",
          reader.offset(), parent, blocks);
      return;
    }
    // Each value takes at least one byte, which limits the number of values in all regions together.
    const uint64_t values = reader.varint();
    if (values > container_.ir.bytes.size() - std::min(live_values_, container_.ir.bytes.size())) {
      failure_.invalid("byte {}: a region announces {} values, more than the file has room for", reader.offset(),
                       values);
      return;
    }
    const size_t before = scope.values.size();
    const size_t next = std::exchange(scope.next, before);
    live_values_ += values;
    scope.values.resize(before + values);
    read_block(reader, region.emplaceBlock(), scope, parent, depth);
    live_values_ -= values;
    scope.values.resize(before);
    scope.next = next;
  }

  mlir::Value read_operand(ByteReader& reader, const Scope& scope) {
    const uint64_t index = reader.varint();
    if (index >= scope.values.size() || !scope.values[index]) {
      failure_.invalid("byte {}: an operation uses value {} before or outside the place where it is defined",
                       reader.offset(), index);
      return {};
    }
    return scope.values[index];
  }

  void read_properties(ByteReader& reader, const OperationName& name, bool was_registered, mlir::NamedAttrList& own) {
    const uint64_t index = reader.varint();
    if (index >= container_.properties.size()) {
      failure_.invalid("byte {}: there are no properties {}", reader.offset(), index);
      return;
    }
    ByteReader properties = container_.properties[index].reader(failure_);
    if (!was_registered) {
      const auto dictionary = mlir::dyn_cast_or_null<mlir::DictionaryAttr>(attributes_.read_attribute(properties));
      if (dictionary) {
        own.append(dictionary.getValue());
      } else {
        failure_.invalid("byte {}: expected the attributes of '{}'", properties.offset(), name.name);
      }
      return;
    }
    if (name.vhlo != nullptr) {
      for (const VhloAttribute& attribute : name.vhlo->attributes) {
        set(own, attribute.name, attributes_.read_attribute(properties));
      }
    } else {
      if (!name.is_known && !properties.empty()) {
        failure_.unsupported("byte {}: '{}' has attributes with a custom encoding; give the module as text, or as VHLO",
                             properties.offset(), name.name);
      }
      const bool is_early = count_numbers(properties) < name.properties.size();
      for (const Property& property : name.properties) {
        if (property.is_late && is_early) {
          continue;
        }
        set(own, property.name,
            property.is_optional ? attributes_.read_optional_attribute(properties)
                                 : attributes_.read_attribute(properties));
      }
    }
    if (!properties.empty()) {
      failure_.unsupported("byte {}: '{}' has more attributes than version {} of StableHLO gives it",
                           properties.offset(), name.name, print(kNewest));
    }
  }

  // The number of properties, each of which is one number.
  static size_t count_numbers(ByteReader reader) {
    size_t count = 0;
    for (; !reader.empty(); ++count) {
      (void)reader.varint();
    }
    return count;
  }

  static void set(mlir::NamedAttrList& own, std::string_view name, mlir::Attribute value) {
    if (value) {
      own.set(llvm::StringRef(name.data(), name.size()), value);
    }
  }

  // Before properties existed, one dictionary held all attributes.
  static void take_own(const VhloOp& op, mlir::NamedAttrList& discardable, mlir::NamedAttrList& own) {
    for (const VhloAttribute& attribute : op.attributes) {
      const llvm::StringRef name(attribute.name.data(), attribute.name.size());
      if (const mlir::Attribute value = discardable.erase(name); value && !own.get(name)) {
        own.set(name, value);
      }
    }
  }

  const Container& container_;
  mlir::MLIRContext* context_;
  Failure& failure_;
  AttributeReader attributes_;
  std::vector<OperationName> names_;
  size_t live_values_ = 0;
  size_t operations_ = 0;
  bool has_locations_ = false;
};

Result<Module> read(std::string_view bytes, std::string_view name) {
  Failure failure(fmt::format("{}: MLIR bytecode", name));
  const Container container = read_container(bytes, failure);
  if (failure) {
    return failure.error();
  }
  std::shared_ptr<mlir::MLIRContext> context = Module::make_context();
  const ErrorCollector errors(context.get());
  OperationReader reader(container, context.get(), failure);
  mlir::OwningOpRef<mlir::ModuleOp> op = reader.read();
  if (failure) {
    // MLIR's own error is more precise, if there is one.
    return errors.has_error() ? errors.error(name) : failure.error();
  }
  return Module::adopt(context, std::move(op), reader.has_locations(), name);
}

}  // namespace
}  // namespace bytecode

Format format_of(std::string_view bytes) {
  if (!bytes.starts_with(bytecode::kMagic)) {
    return {};
  }
  bytecode::Failure ignored("");
  bytecode::ByteReader reader(bytes.substr(bytecode::kMagic.size()), 0, ignored);
  (void)reader.varint();
  const std::string_view producer = reader.zero_ended();
  if (producer.starts_with(bytecode::kPortableProducer)) {
    if (const auto version = bytecode::parse_version(producer.substr(bytecode::kPortableProducer.size()))) {
      return {Encoding::kVhlo, *version};
    }
  }
  return {Encoding::kBytecode};
}

Result<Module> read_module(std::string_view bytes, std::string_view name) {
  return format_of(bytes).encoding == Encoding::kText ? Module::parse(bytes, name) : bytecode::read(bytes, name);
}

}  // namespace flashlift::stablehlo
