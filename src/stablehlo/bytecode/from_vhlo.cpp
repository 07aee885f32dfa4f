#include "stablehlo/bytecode/from_vhlo.h"

#include "mlir/IR/BuiltinAttributes.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/bytecode/spelling.h"
#include "stablehlo/reader/attributes.h"

namespace flashlift::stablehlo::bytecode {
namespace {

using Ints = std::vector<int64_t>;

llvm::StringRef ref(std::string_view text) { return {text.data(), text.size()}; }

class Converter {
 public:
  Converter(const VhloOp& op, mlir::NamedAttrList& attributes, mlir::MLIRContext* context, Failure& failure)
      : op_(op), attributes_(attributes), context_(context), failure_(failure) {}

  void run() {
    bool has_dot = false, has_algorithm = false, has_gather = false, has_scatter = false, has_conv = false;
    for (const VhloAttribute& attribute : op_.attributes) {
      const mlir::Attribute value = attributes_.get(ref(attribute.name));
      if (!value) {
        failure_.invalid("'vhlo.{}_v{}' lacks its attribute '{}'", op_.name, op_.version, attribute.name);
        return;
      }
      switch (attribute.kind) {
        case AttributeKind::kDot:
          has_dot = true;
          break;
        case AttributeKind::kAlgorithm:
          has_algorithm = true;
          break;
        case AttributeKind::kGather:
          has_gather = true;
          break;
        case AttributeKind::kScatter:
          has_scatter = true;
          break;
        case AttributeKind::kConv:
          has_conv = true;
          break;
        case AttributeKind::kChannel:
          break;
        default:
          convert(attribute, value);
      }
    }
    if (has_dot) {
      make_dot();
    }
    if (has_algorithm) {
      make_algorithm();
    }
    if (has_gather) {
      make_gather();
    }
    if (has_scatter) {
      make_scatter();
    }
    if (has_conv) {
      make_conv();
    }
    if (attributes_.get("channel_id")) {
      make_channel();
    }
    if (op_.name == "custom_call") {
      // Layouts are given for both sides or for none; an empty list beside another one is no default.
      const auto complete = [&](llvm::StringRef name, llvm::StringRef other) {
        if (attributes_.get(other) && !attributes_.get(name)) {
          attributes_.set(name, mlir::ArrayAttr::get(context_, {}));
        }
      };
      complete("operand_layouts", "result_layouts");
      complete("result_layouts", "operand_layouts");
    }
  }

 private:
  void wrong(std::string_view name, std::string_view expected) {
    failure_.invalid("'vhlo.{}_v{}': expected its attribute '{}' to be {}", op_.name, op_.version, name, expected);
  }

  void convert(const VhloAttribute& attribute, mlir::Attribute value) {
    const llvm::StringRef name = ref(attribute.name);
    mlir::Attribute converted = value;
    switch (attribute.kind) {
      case AttributeKind::kDims:
        converted = mlir::DenseI64ArrayAttr::get(context_, take_ints(attribute.name));
        break;
      case AttributeKind::kFlags: {
        llvm::SmallVector<bool> flags;
        const auto elements = mlir::dyn_cast<mlir::DenseElementsAttr>(value);
        if (!elements || !elements.getElementType().isInteger(1)) {
          wrong(attribute.name, "a tensor of booleans");
          return;
        }
        llvm::append_range(flags, elements.getValues<bool>());
        converted = mlir::DenseBoolArrayAttr::get(context_, flags);
        break;
      }
      case AttributeKind::kSymbol:
        converted = symbol(attribute.name, value);
        break;
      case AttributeKind::kSymbols: {
        const auto list = mlir::dyn_cast<mlir::ArrayAttr>(value);
        if (!list) {
          wrong(attribute.name, "a list of names");
          return;
        }
        llvm::SmallVector<mlir::Attribute> symbols;
        for (const mlir::Attribute each : list) {
          symbols.push_back(symbol(attribute.name, each));
        }
        converted = failure_ ? mlir::Attribute() : mlir::ArrayAttr::get(context_, symbols);
        break;
      }
      case AttributeKind::kUnit: {
        const auto flag = mlir::dyn_cast<mlir::BoolAttr>(value);
        if (!flag) {
          wrong(attribute.name, "a boolean");
          return;
        }
        attributes_.erase(name);
        if (flag.getValue()) {
          attributes_.set(name, mlir::UnitAttr::get(context_));
        }
        return;
      }
      default:
        break;
    }
    if (failure_) {
      return;
    }
    attributes_.erase(name);
    if (!is_default(attribute.default_value, converted)) {
      attributes_.set(name, converted);
    }
  }

  mlir::Attribute symbol(std::string_view name, mlir::Attribute value) {
    const auto text = mlir::dyn_cast<mlir::StringAttr>(value);
    if (!text) {
      wrong(name, "a function's name");
      return {};
    }
    return mlir::FlatSymbolRefAttr::get(context_, text.getValue());
  }

  static bool is_default(std::string_view what, mlir::Attribute value) {
    const auto all = [&](auto predicate) {
      const auto list = mlir::dyn_cast<mlir::ArrayAttr>(value);
      return list && llvm::all_of(list, predicate);
    };
    const auto is_integer = [&](int64_t number) {
      const auto integer = mlir::dyn_cast<mlir::IntegerAttr>(value);
      return integer && integer.getValue().getSignificantBits() <= 64 && integer.getValue().getSExtValue() == number;
    };
    const auto is_text = [](mlir::Attribute attribute, llvm::StringRef text) {
      const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(attribute);
      return opaque && opaque.getAttrData() == text;
    };
    if (what == "false") {
      const auto flag = mlir::dyn_cast<mlir::BoolAttr>(value);
      return flag && !flag.getValue();
    }
    if (what == "ones") {
      const auto dims = mlir::dyn_cast<mlir::DenseI64ArrayAttr>(value);
      return dims && llvm::all_of(dims.asArrayRef(), [](int64_t each) { return each == 1; });
    }
    if (what == "falses") {
      const auto flags = mlir::dyn_cast<mlir::DenseBoolArrayAttr>(value);
      return flags && llvm::none_of(flags.asArrayRef(), [](bool each) { return each; });
    }
    if (what == "zeros") {
      const auto numbers = mlir::dyn_cast<mlir::DenseIntElementsAttr>(value);
      return numbers && (numbers.empty() || (numbers.isSplat() && numbers.getSplatValue<llvm::APInt>().isZero()));
    }
    if (what == "precision") {
      return all([&](mlir::Attribute each) { return is_text(each, "precision DEFAULT"); });
    }
    if (what == "pairs") {
      const auto numbers = mlir::dyn_cast<mlir::DenseIntElementsAttr>(value);
      return numbers && numbers.empty();
    }
    if (what == "empty") {
      const auto dims = mlir::dyn_cast<mlir::DenseI64ArrayAttr>(value);
      return (dims && dims.empty()) || all([](mlir::Attribute) { return false; });
    }
    if (what == "text") {
      const auto text = mlir::dyn_cast<mlir::StringAttr>(value);
      return text && text.getValue().empty();
    }
    if (what == "dictionary") {
      const auto dictionary = mlir::dyn_cast<mlir::DictionaryAttr>(value);
      return dictionary && dictionary.empty();
    }
    if (what == "dictionaries") {
      return all([](mlir::Attribute each) {
        const auto dictionary = mlir::dyn_cast<mlir::DictionaryAttr>(each);
        return dictionary && dictionary.empty();
      });
    }
    if (what == "notype") {
      return is_text(value, "comparison_type NOTYPE");
    }
    if (what == "accuracy") {
      return is_text(value, "result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>");
    }
    if (what == "zero32") {
      return is_integer(0);
    }
    if (what == "one32") {
      return is_integer(1);
    }
    return what == "minus_one" && is_integer(-1);
  }

  // Removes the attribute and returns its value.
  Ints take_ints(std::string_view name) {
    const auto numbers = mlir::dyn_cast_or_null<mlir::DenseIntElementsAttr>(attributes_.erase(ref(name)));
    Ints list;
    if (!numbers || !numbers.getElementType().isSignlessInteger(64)) {
      wrong(name, "a tensor of i64");
    } else {
      llvm::append_range(list, numbers.getValues<int64_t>());
    }
    return list;
  }

  // Dimension numbers that only later versions of the operation have.
  Ints take_ints_if_any(std::string_view name) { return attributes_.get(ref(name)) ? take_ints(name) : Ints(); }

  int64_t take_int(std::string_view name) {
    const auto number = mlir::dyn_cast_or_null<mlir::IntegerAttr>(attributes_.erase(ref(name)));
    if (!number || number.getValue().getSignificantBits() > 64) {
      wrong(name, "an integer");
      return 0;
    }
    return number.getValue().getSExtValue();
  }

  void set_text(std::string_view name, const std::string& text) {
    if (!failure_) {
      attributes_.set(ref(name), mlir::OpaqueAttr::get(mlir::StringAttr::get(context_, "stablehlo"), text,
                                                       mlir::NoneType::get(context_)));
    }
  }

  void make_dot() {
    DotDims dims;
    dims.lhs_batch = take_ints("lhs_batching_dimensions");
    dims.rhs_batch = take_ints("rhs_batching_dimensions");
    dims.lhs_contract = take_ints("lhs_contracting_dimensions");
    dims.rhs_contract = take_ints("rhs_contracting_dimensions");
    set_text("dot_dimension_numbers", print_dot(dims));
  }

  void make_algorithm() {
    DotAlgorithm algorithm;
    bool is_none = true;
    const auto take_type = [&](llvm::StringRef name) {
      const auto type = mlir::dyn_cast_or_null<mlir::TypeAttr>(attributes_.erase(name));
      std::string text;
      if (type && !mlir::isa<mlir::NoneType>(type.getValue())) {
        is_none = false;
        llvm::raw_string_ostream(text) << type.getValue();
      }
      return text;
    };
    algorithm.lhs = take_type("lhs_precision_type");
    algorithm.rhs = take_type("rhs_precision_type");
    algorithm.accumulation = take_type("accumulation_type");
    if (is_none) {
      for (const char* name :
           {"lhs_component_count", "rhs_component_count", "num_primitive_operations", "allow_imprecise_accumulation"}) {
        attributes_.erase(name);
      }
      return;
    }
    algorithm.lhs_components = take_int("lhs_component_count");
    algorithm.rhs_components = take_int("rhs_component_count");
    algorithm.operations = take_int("num_primitive_operations");
    algorithm.is_imprecise = take_int("allow_imprecise_accumulation") != 0;
    if (algorithm.lhs.empty() || algorithm.rhs.empty() || algorithm.accumulation.empty()) {
      wrong("lhs_precision_type", "a type, as those of rhs and of the accumulation");
    }
    set_text("algorithm", spell_algorithm(algorithm));
  }

  void make_gather() {
    GatherDims dims;
    dims.offset_dims = take_ints("offset_dims");
    dims.collapsed_slice_dims = take_ints("collapsed_slice_dims");
    dims.operand_batching_dims = take_ints_if_any("operand_batching_dims");
    dims.start_indices_batching_dims = take_ints_if_any("start_indices_batching_dims");
    dims.start_index_map = take_ints("start_index_map");
    dims.index_vector_dim = take_int("index_vector_dim");
    set_text("dimension_numbers", print_gather(dims));
  }

  void make_scatter() {
    ScatterDims dims;
    dims.update_window = take_ints("update_window_dims");
    dims.inserted_window = take_ints("inserted_window_dims");
    dims.input_batching = take_ints_if_any("input_batching_dims");
    dims.indices_batching = take_ints_if_any("scatter_indices_batching_dims");
    dims.scatter_to_operand = take_ints("scatter_dims_to_operand_dims");
    dims.index_vector_dim = take_int("index_vector_dim");
    set_text("scatter_dimension_numbers", spell_scatter(dims));
  }

  void make_conv() {
    ConvDims dims;
    dims.input_batch = take_int("input_batch_dimension");
    dims.input_feature = take_int("input_feature_dimension");
    dims.input_spatial = take_ints("input_spatial_dimensions");
    dims.kernel_input = take_int("kernel_input_feature_dimension");
    dims.kernel_output = take_int("kernel_output_feature_dimension");
    dims.kernel_spatial = take_ints("kernel_spatial_dimensions");
    dims.output_batch = take_int("output_batch_dimension");
    dims.output_feature = take_int("output_feature_dimension");
    dims.output_spatial = take_ints("output_spatial_dimensions");
    const std::string text = spell_conv(dims);
    if (text.empty()) {
      failure_.invalid("'vhlo.{}_v{}': its dimension numbers do not name each dimension once", op_.name, op_.version);
    }
    set_text("dimension_numbers", text);
    if (op_.name == "dynamic_conv") {
      attributes_.erase("padding");  // an operand holds its values
    }
  }

  void make_channel() {
    const bool is_transfer = attributes_.get("channel_type") != nullptr;
    const int64_t handle = take_int("channel_id");
    const int64_t type = is_transfer ? take_int("channel_type") : 0;
    if (is_transfer || handle != 0) {
      set_text("channel_handle", fmt::format("channel_handle<handle = {}, type = {}>", handle, type));
    }
  }

  const VhloOp& op_;
  mlir::NamedAttrList& attributes_;
  mlir::MLIRContext* context_;
  Failure& failure_;
};

}  // namespace

void from_vhlo(const VhloOp& op, mlir::NamedAttrList& attributes, mlir::MLIRContext* context, Failure& failure) {
  if (!failure) {
    Converter(op, attributes, context, failure).run();
  }
}

}  // namespace flashlift::stablehlo::bytecode
