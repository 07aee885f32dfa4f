#include "stablehlo/bytecode/to_vhlo.h"

#include "mlir/AsmParser/AsmParser.h"
#include "mlir/IR/Builders.h"
#include "stablehlo/bytecode/spelling.h"
#include "stablehlo/reader/attributes.h"
#include "stablehlo/reader/module.h"
#include "support/error.h"

namespace flashlift::stablehlo::bytecode {
namespace {

using Ints = std::vector<int64_t>;

std::string_view view(llvm::StringRef text) { return {text.data(), text.size()}; }
llvm::StringRef ref(std::string_view text) { return {text.data(), text.size()}; }

// "stablehlo.add" and "func.func" without the dialect.
std::string_view vhlo_name(mlir::Operation* op) {
  const std::string_view name = view(op->getName().getStringRef());
  for (const std::string_view prefix : {"stablehlo.", "func."}) {
    if (name.starts_with(prefix)) {
      return name.substr(prefix.size());
    }
  }
  return {};
}

class Converter {
 public:
  explicit Converter(mlir::Operation* op) : op_(op), builder_(op->getContext()) {}

  Result<VhloForm> run() {
    VhloForm form;
    form.newest = find_vhlo_op(vhlo_name(op_), kNewest);
    const std::string_view name = form.newest->name;
    for (const VhloAttribute& attribute : form.newest->attributes) {
      const mlir::Attribute value = convert(attribute);
      if (!value) {
        return invalid_argument("{}: '{}' lacks the attribute '{}', or has it in a form that VHLO does not have",
                                describe(op_->getLoc()), view(op_->getName().getStringRef()), attribute.name);
      }
      form.attributes.push_back(value);
    }
    const bool is_one_operand_once = name == "all_gather" || name == "all_reduce" || name == "all_to_all";
    form.is_plain =
        !(is_one_operand_once && op_->getNumOperands() > 1) && !(name == "composite" && op_->getNumRegions() > 0);
    return form;
  }

 private:
  mlir::Attribute get(std::string_view name) const {
    // Returns an inherent attribute of a registered operation, or a property or attribute of others.
    return op_->getAttr(ref(name));
  }
  std::string_view text(std::string_view name) const {
    const auto opaque = mlir::dyn_cast_or_null<mlir::OpaqueAttr>(get(name));
    return opaque ? view(opaque.getAttrData()) : std::string_view();
  }
  mlir::Attribute spelled(std::string_view dialect, const std::string& text) {
    return mlir::OpaqueAttr::get(builder_.getStringAttr(ref(dialect)), text, builder_.getNoneType());
  }
  mlir::Attribute ints(const Ints& list) { return builder_.getDenseI64ArrayAttr(list); }
  mlir::Attribute number(int64_t value) { return builder_.getI64IntegerAttr(value); }

  mlir::Attribute convert(const VhloAttribute& attribute) {
    switch (attribute.kind) {
      case AttributeKind::kDot:
        return convert_dot(attribute.name);
      case AttributeKind::kAlgorithm:
        return convert_algorithm(attribute.name);
      case AttributeKind::kGather:
        return convert_gather(attribute.name);
      case AttributeKind::kScatter:
        return convert_scatter(attribute.name);
      case AttributeKind::kConv:
        return convert_conv(attribute.name);
      case AttributeKind::kChannel:
        return convert_channel(attribute.name);
      default:
        break;
    }
    const mlir::Attribute value = get(attribute.name);
    switch (attribute.kind) {
      case AttributeKind::kUnit: {
        const auto flag = mlir::dyn_cast_or_null<mlir::BoolAttr>(value);
        return builder_.getBoolAttr(flag ? flag.getValue() : value != nullptr);
      }
      case AttributeKind::kApi: {
        const auto version = mlir::dyn_cast_or_null<mlir::IntegerAttr>(value);
        if (value && (!version || version.getValue().getActiveBits() > 31)) {
          return {};
        }
        return spelled("vhlo", fmt::format("api {}", version ? version.getInt() : 1));
      }
      default:
        break;
    }
    if (!value) {
      return make_default(attribute);
    }
    switch (attribute.kind) {
      case AttributeKind::kSymbol:
        return name_of(value);
      case AttributeKind::kSymbols: {
        const auto list = mlir::dyn_cast<mlir::ArrayAttr>(value);
        llvm::SmallVector<mlir::Attribute> names;
        for (const mlir::Attribute each : list ? list.getValue() : llvm::ArrayRef<mlir::Attribute>()) {
          names.push_back(name_of(each));
          if (!names.back()) {
            return {};
          }
        }
        return list ? builder_.getArrayAttr(names) : mlir::Attribute();
      }
      default:
        return value;
    }
  }

  mlir::Attribute name_of(mlir::Attribute symbol) {
    const auto flat = mlir::dyn_cast<mlir::FlatSymbolRefAttr>(symbol);
    return flat ? flat.getAttr() : mlir::StringAttr();
  }

  size_t window_rank() const {
    if (const auto dims = mlir::dyn_cast_or_null<mlir::DenseI64ArrayAttr>(get("window_dimensions"))) {
      return static_cast<size_t>(dims.size());
    }
    if (const auto dims = parse_conv(text("dimension_numbers"))) {
      return dims->input_spatial.size();
    }
    const auto tensor = op_->getNumOperands() == 0
                            ? mlir::RankedTensorType()
                            : mlir::dyn_cast<mlir::RankedTensorType>(op_->getOperand(0).getType());
    return tensor ? static_cast<size_t>(tensor.getRank()) : 0;
  }

  mlir::Attribute make_default(const VhloAttribute& attribute) {
    const std::string_view what = attribute.default_value;
    if (what == "false") {
      return builder_.getBoolAttr(false);
    }
    if (what == "ones") {
      return ints(Ints(window_rank(), 1));
    }
    if (what == "falses") {
      return builder_.getDenseBoolArrayAttr(llvm::SmallVector<bool>(window_rank(), false));
    }
    if (what == "zeros" || what == "pairs") {
      const int64_t rows = what == "zeros" ? static_cast<int64_t>(window_rank()) : 0;
      const auto type = mlir::RankedTensorType::get({rows, 2}, builder_.getI64Type());
      return mlir::DenseElementsAttr::get(type, llvm::ArrayRef<int64_t>(Ints(static_cast<size_t>(2 * rows), 0)));
    }
    if (what == "empty") {
      return attribute.kind == AttributeKind::kDims ? ints({}) : builder_.getArrayAttr({});
    }
    if (what == "text") {
      return builder_.getStringAttr("");
    }
    if (what == "dictionary") {
      return builder_.getDictionaryAttr({});
    }
    if (what == "dictionaries") {
      return builder_.getArrayAttr({});
    }
    if (what == "precision") {
      const mlir::Attribute each = spelled("stablehlo", "precision DEFAULT");
      return builder_.getArrayAttr({each, each});
    }
    if (what == "notype") {
      return spelled("stablehlo", "comparison_type NOTYPE");
    }
    if (what == "accuracy") {
      return spelled("stablehlo", "result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>");
    }
    if (what == "zero32") {
      return builder_.getI32IntegerAttr(0);
    }
    return what == "minus_one" ? number(-1) : mlir::Attribute();
  }

  mlir::Attribute convert_dot(std::string_view name) {
    const std::optional<DotDims> dims = parse_dot(text("dot_dimension_numbers"));
    if (!dims) {
      return {};
    }
    return ints(name == "lhs_batching_dimensions"      ? dims->lhs_batch
                : name == "rhs_batching_dimensions"    ? dims->rhs_batch
                : name == "lhs_contracting_dimensions" ? dims->lhs_contract
                                                       : dims->rhs_contract);
  }

  mlir::Attribute convert_algorithm(std::string_view name) {
    if (!get("algorithm")) {
      return mlir::TypeAttr::get(builder_.getNoneType());
    }
    const std::optional<DotAlgorithm> algorithm = parse_algorithm(text("algorithm"));
    if (!algorithm) {
      return {};
    }
    const auto type = [&](const std::string& spelling) {
      const mlir::Type parsed = mlir::parseType(spelling, builder_.getContext());
      return parsed ? mlir::TypeAttr::get(parsed) : mlir::TypeAttr();
    };
    if (name == "lhs_precision_type") {
      return type(algorithm->lhs);
    }
    if (name == "rhs_precision_type") {
      return type(algorithm->rhs);
    }
    if (name == "accumulation_type") {
      return type(algorithm->accumulation);
    }
    if (name == "allow_imprecise_accumulation") {
      return builder_.getBoolAttr(algorithm->is_imprecise);
    }
    return number(name == "lhs_component_count"   ? algorithm->lhs_components
                  : name == "rhs_component_count" ? algorithm->rhs_components
                                                  : algorithm->operations);
  }

  mlir::Attribute convert_gather(std::string_view name) {
    const std::optional<GatherDims> dims = parse_gather(text("dimension_numbers"));
    if (!dims) {
      return {};
    }
    if (name == "index_vector_dim") {
      return number(dims->index_vector_dim);
    }
    return ints(name == "offset_dims"             ? dims->offset_dims
                : name == "collapsed_slice_dims"  ? dims->collapsed_slice_dims
                : name == "operand_batching_dims" ? dims->operand_batching_dims
                : name == "start_index_map"       ? dims->start_index_map
                                                  : dims->start_indices_batching_dims);
  }

  mlir::Attribute convert_scatter(std::string_view name) {
    const std::optional<ScatterDims> dims = parse_scatter(text("scatter_dimension_numbers"));
    if (!dims) {
      return {};
    }
    if (name == "index_vector_dim") {
      return number(dims->index_vector_dim);
    }
    return ints(name == "update_window_dims"              ? dims->update_window
                : name == "inserted_window_dims"          ? dims->inserted_window
                : name == "input_batching_dims"           ? dims->input_batching
                : name == "scatter_indices_batching_dims" ? dims->indices_batching
                                                          : dims->scatter_to_operand);
  }

  mlir::Attribute convert_conv(std::string_view name) {
    const std::optional<ConvDims> dims = parse_conv(text("dimension_numbers"));
    if (!dims) {
      return {};
    }
    if (name.ends_with("spatial_dimensions")) {
      return ints(name.starts_with("input")    ? dims->input_spatial
                  : name.starts_with("kernel") ? dims->kernel_spatial
                                               : dims->output_spatial);
    }
    return number(name == "input_batch_dimension"             ? dims->input_batch
                  : name == "input_feature_dimension"         ? dims->input_feature
                  : name == "kernel_input_feature_dimension"  ? dims->kernel_input
                  : name == "kernel_output_feature_dimension" ? dims->kernel_output
                  : name == "output_batch_dimension"          ? dims->output_batch
                                                              : dims->output_feature);
  }

  mlir::Attribute convert_channel(std::string_view name) {
    if (!get("channel_handle")) {
      return number(0);
    }
    const std::optional<Fields> fields = parse_fields(text("channel_handle"), "channel_handle");
    const std::string_view found =
        fields ? find_field(*fields, name == "channel_id" ? "handle" : "type") : std::string_view();
    const std::optional<int64_t> value = parse_number(found);
    return value ? number(*value) : mlir::Attribute();
  }

  mlir::Operation* op_;
  mlir::Builder builder_;
};

// Whether the value of an attribute that a later version added is the behaviour of earlier versions.
bool is_neutral(mlir::Attribute value) {
  if (const auto dims = mlir::dyn_cast<mlir::DenseI64ArrayAttr>(value)) {
    return dims.empty();
  }
  if (const auto list = mlir::dyn_cast<mlir::ArrayAttr>(value)) {
    return list.empty();
  }
  if (const auto flag = mlir::dyn_cast<mlir::BoolAttr>(value)) {
    return !flag.getValue();
  }
  if (const auto type = mlir::dyn_cast<mlir::TypeAttr>(value)) {
    return mlir::isa<mlir::NoneType>(type.getValue());
  }
  if (const auto elements = mlir::dyn_cast<mlir::DenseElementsAttr>(value)) {
    return elements.empty();
  }
  const auto opaque = mlir::dyn_cast<mlir::OpaqueAttr>(value);
  return opaque && opaque.getAttrData() == "result_accuracy<mode = #stablehlo.result_accuracy_mode<DEFAULT>>";
}

}  // namespace

bool has_vhlo_form(mlir::Operation* op) { return find_vhlo_op(vhlo_name(op), kNewest) != nullptr; }

Result<VhloForm> to_vhlo(mlir::Operation* op) { return Converter(op).run(); }

bool fits(const VhloOp& op, const VhloForm& form) {
  if (&op == form.newest) {
    return true;
  }
  size_t at = 0;
  for (size_t i = 0; i < form.attributes.size(); ++i) {
    const std::string_view name = form.newest->attributes[i].name;
    while (at < op.attributes.size() && op.attributes[at].name < name) {
      return false;  // the older version has an attribute that the newest lacks
    }
    if (at < op.attributes.size() && op.attributes[at].name == name) {
      ++at;
    } else if (!is_neutral(form.attributes[i])) {
      return false;
    }
  }
  return form.is_plain && at == op.attributes.size();
}

const VhloOp& oldest_that_fits(const VhloForm& form) {
  // An operation has at most two versions.
  const VhloOp* oldest = find_vhlo_op(fmt::format("{}_v1", form.newest->name));
  return oldest != nullptr && fits(*oldest, form) ? *oldest : *form.newest;
}

}  // namespace flashlift::stablehlo::bytecode
