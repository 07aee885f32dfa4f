#include "stablehlo/reader/attribute_guard.h"

#include <algorithm>

#include "llvm/ADT/DenseMap.h"
#include "mlir/IR/Attributes.h"
#include "mlir/IR/Block.h"
#include "mlir/IR/BuiltinTypes.h"
#include "mlir/IR/Operation.h"
#include "mlir/IR/Region.h"
#include "mlir/IR/Types.h"
#include "stablehlo/reader/module.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

struct Extent {
  int depth = 0;
  int64_t parts = 0;       // saturates
  bool is_shapely = true;  // no shape in it has too many dimensions or elements
};

bool is_shapely(mlir::Type type) {
  const auto shaped = mlir::dyn_cast<mlir::ShapedType>(type);
  if (!shaped || !shaped.hasRank()) {
    return true;
  }
  int64_t elements = 1;
  bool overflows = false;
  for (const int64_t size : shaped.getShape()) {
    // A size of 0 must not hide an overflow of the other sizes' product.
    const bool counts = !mlir::ShapedType::isDynamic(size) && size != 0;
    overflows = overflows || (counts && __builtin_mul_overflow(elements, size, &elements));
  }
  return shaped.getRank() <= kMaxDimensions && !overflows;
}

// Measures attributes and types, each once, without recursion.
class Meter {
 public:
  Extent measure(mlir::Attribute attribute) { return measure_node({attribute, mlir::Type()}); }
  Extent measure(mlir::Type type) { return measure_node({mlir::Attribute(), type}); }

 private:
  // Holds either an attribute or a type.
  struct Node {
    mlir::Attribute attribute;
    mlir::Type type;
    const void* key() const { return attribute ? attribute.getAsOpaquePointer() : type.getAsOpaquePointer(); }
  };

  static llvm::SmallVector<Node> children(const Node& node) {
    llvm::SmallVector<Node> found;
    const auto on_attribute = [&](mlir::Attribute attribute) {
      if (attribute) {
        found.push_back({attribute, mlir::Type()});
      }
    };
    const auto on_type = [&](mlir::Type type) {
      if (type) {
        found.push_back({mlir::Attribute(), type});
      }
    };
    if (node.attribute) {
      if (const auto typed = mlir::dyn_cast<mlir::TypedAttr>(node.attribute)) {
        on_type(typed.getType());
      }
      node.attribute.walkImmediateSubElements(on_attribute, on_type);
    } else {
      node.type.walkImmediateSubElements(on_attribute, on_type);
    }
    return found;
  }

  Extent measure_node(const Node& root) {
    if (!root.key()) {
      return {};
    }
    llvm::SmallVector<Node> pending = {root};
    while (!pending.empty()) {
      const Node node = pending.back();
      if (known_.contains(node.key())) {
        pending.pop_back();
        continue;
      }
      Extent extent{1, 1, !node.type || is_shapely(node.type)};
      bool complete = true;
      for (const Node& child : children(node)) {
        const auto found = known_.find(child.key());
        if (found == known_.end()) {
          pending.push_back(child);
          complete = false;
        } else {
          extent.depth = std::max(extent.depth, found->second.depth + 1);
          extent.parts = std::min(extent.parts + found->second.parts, kMaxAllParts);
          extent.is_shapely = extent.is_shapely && found->second.is_shapely;
        }
      }
      if (complete) {
        known_[node.key()] = extent;
        pending.pop_back();
      }
    }
    return known_[root.key()];
  }

  llvm::DenseMap<const void*, Extent> known_;
};

class Guard {
 public:
  Status check(mlir::Operation* op) {
    FLASHLIFT_RETURN_IF_ERROR(check_location(op, op->getLoc()));
    for (const mlir::NamedAttribute& attribute : op->getDiscardableAttrs()) {
      FLASHLIFT_RETURN_IF_ERROR(check_parts(op, meter_.measure(attribute.getValue())));
    }
    FLASHLIFT_RETURN_IF_ERROR(check_parts(op, meter_.measure(op->getPropertiesAsAttribute())));
    for (const mlir::Type type : op->getResultTypes()) {
      FLASHLIFT_RETURN_IF_ERROR(check_parts(op, meter_.measure(type)));
    }
    for (mlir::Region& region : op->getRegions()) {
      for (mlir::Block& block : region) {
        for (mlir::BlockArgument argument : block.getArguments()) {
          FLASHLIFT_RETURN_IF_ERROR(check_location(op, argument.getLoc()));
          FLASHLIFT_RETURN_IF_ERROR(check_parts(op, meter_.measure(argument.getType())));
        }
      }
    }
    return {};
  }

 private:
  // Locations are printed as aliases, so that only their depth matters.
  Status check_location(mlir::Operation* op, mlir::Location location) {
    return check_depth(op, meter_.measure(mlir::LocationAttr(location)));
  }

  Status check_depth(mlir::Operation* op, const Extent& extent) const {
    if (extent.depth > kMaxAttributeDepth) {
      return unsupported("{}: '{}' has an attribute or a location nested more than {} deep", describe(op->getLoc()),
                         op->getName().getStringRef().str(), kMaxAttributeDepth);
    }
    return {};
  }

  Status check_parts(mlir::Operation* op, const Extent& extent) {
    FLASHLIFT_RETURN_IF_ERROR(check_depth(op, extent));
    if (!extent.is_shapely) {
      return unsupported("{}: '{}' has a tensor of more than {} dimensions, or of more than 2^63 - 1 elements",
                         describe(op->getLoc()), op->getName().getStringRef().str(), kMaxDimensions);
    }
    total_ += extent.parts;
    if (extent.parts > kMaxAttributeParts || total_ > kMaxAllParts) {
      return unsupported("{}: '{}' has an attribute of more than {} parts once its aliases are written out",
                         describe(op->getLoc()), op->getName().getStringRef().str(), kMaxAttributeParts);
    }
    return {};
  }

  Meter meter_;
  int64_t total_ = 0;
};

}  // namespace

Status check_attributes(mlir::ModuleOp module) {
  Guard guard;
  Status status;
  module->walk<mlir::WalkOrder::PreOrder>([&](mlir::Operation* op) {
    status = guard.check(op);
    return status.ok() ? mlir::WalkResult::advance() : mlir::WalkResult::interrupt();
  });
  return status;
}

}  // namespace flashlift::stablehlo
