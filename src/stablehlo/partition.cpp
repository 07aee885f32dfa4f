#include "stablehlo/partition.h"

#include <algorithm>
#include <map>

#include "fmt/ranges.h"
#include "mlir/Dialect/Func/IR/FuncOps.h"
#include "stablehlo/reader/ops.h"
#include "support/error.h"

namespace flashlift::stablehlo {
namespace {

using Axes = std::vector<std::string>;

constexpr size_t kFarthest = 20000;  // operations between a value and those it depends on

bool is_fused_call(mlir::Operation* op) {
  const auto call = custom_call(op);
  return call && (call->target == "flashlift.attention" || call->target == "flashlift.attention_backward");
}

int64_t partitions_of(Module& module) {
  const auto count = module.op()->getAttrOfType<mlir::IntegerAttr>("mhlo.num_partitions");
  return count ? count.getValue().getLimitedValue(INT32_MAX) : 1;
}

mlir::Operation* parent_manual_computation(mlir::Operation* op) {
  do {
    op = op->getParentOp();
  } while (op != nullptr && kind(op) != OpKind::kSdyManualComputation);
  return op;
}

// The mesh of a manual computation, which its annotations name; empty if they do not.
std::string mesh_of(mlir::Operation* computation) {
  auto shardings = parse_shardings(shardy_text(computation->getAttr("in_shardings")));
  if (shardings.empty()) {
    shardings = parse_shardings(shardy_text(computation->getAttr("out_shardings")));
  }
  return shardings.empty() ? "" : shardings.front().mesh;
}

// The axes of a mesh over which the code at an operation is manual: those of all computations around it.
Axes manual_axes_at(mlir::Operation* op, std::string_view mesh) {
  Axes manual;
  while ((op = parent_manual_computation(op)) != nullptr) {
    const Axes axes = mesh_of(op) == mesh ? parse_manual_axes(shardy_text(op->getAttr("manual_axes"))) : Axes();
    manual.insert(manual.end(), axes.begin(), axes.end());
  }
  return manual;
}

// The axes of a dimension without those that another dimension keeps. No tensor can have an axis twice, but the product
// of x and weights may look so: if x is split by batches or its sequence, and the weights by heads, over the same
// devices. Batches keep an axis first, so that the partitioner gathers the weights; then heads, so that it gathers x
// and not the keys.
Axes own_axes(const Sharding& sharding, std::string_view dims, size_t dim) {
  constexpr std::string_view kFirst = "bhsd";
  Axes axes = sharding.dims[dim];
  for (size_t i = 0; i < dims.size(); ++i) {
    if (std::pair(kFirst.find(dims[i]), i) < std::pair(kFirst.find(dims[dim]), dim)) {
      std::erase_if(axes, [&](const std::string& axis) { return llvm::is_contained(sharding.dims[i], axis); });
    }
  }
  return axes;
}

std::string with_devices(const Axes& axes) { return fmt::format("\"{}\"", fmt::join(axes, "\", \"")); }

}  // namespace

Partitioner::Partitioner(Module& module, const Annotations& annotations, int64_t partitions)
    : annotations_(annotations), partitions_(std::max(partitions, partitions_of(module))) {
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kSdyMesh) {
      const auto name = op->getAttrOfType<mlir::StringAttr>("sym_name");
      const auto mesh = parse_mesh(shardy_text(op->getAttr("mesh")));
      if (name && mesh) {
        meshes_[name.str()] = *mesh;
      }
    } else if (is_fused_call(op)) {
      others_.insert(op);
    }
  });
}

bool Partitioner::is_local(mlir::Operation* op) const {
  if (partitions_ == 1) {
    return true;
  }
  if (mlir::Operation* inner = parent_manual_computation(op)) {
    const auto known = meshes_.find(mesh_of(inner));
    const auto is_whole = [](const MeshAxis& axis) { return axis.size == 1; };
    return known != meshes_.end() && llvm::all_of(free_axes(op, known->first), is_whole);
  }
  // GSPMD has no such region: an operation is local if everything that it depends on comes from shards.
  bool has_shards = false;
  llvm::DenseSet<mlir::Operation*> seen;
  llvm::SmallVector<mlir::Operation*> pending = {op};
  while (!pending.empty() && seen.size() < kFarthest) {
    mlir::Operation* each = pending.pop_back_val();
    if (!seen.insert(each).second) {
      continue;
    }
    if (is_full_to_shard_call(each)) {
      const auto sharding = each->getAttrOfType<mlir::StringAttr>("mhlo.sharding");
      if (!sharding || sharding.getValue() != "{manual}") {
        return false;
      }
      has_shards = true;
      continue;
    }
    for (mlir::Value operand : each->getOperands()) {
      mlir::Operation* from = operand.getDefiningOp();
      if (from == nullptr) {  // an argument of a region
        from = operand.getParentBlock()->getParentOp();
        if (from == nullptr || mlir::isa<mlir::func::FuncOp>(from)) {
          return false;
        }
      }
      pending.push_back(from);
    }
  }
  return has_shards && pending.empty();
}

std::vector<MeshAxis> Partitioner::free_axes(mlir::Operation* op, const std::string& mesh) const {
  const Axes manual = manual_axes_at(op, mesh);
  std::vector<MeshAxis> axes = meshes_.find(mesh)->second;
  std::erase_if(axes, [&](const MeshAxis& axis) { return llvm::is_contained(manual, axis.name); });
  return axes;
}

int64_t Partitioner::parts(const std::string& mesh, const Axes& axes) const {
  int64_t count = 1;
  const auto found = meshes_.find(mesh);
  for (const std::string& axis : axes) {
    const auto at = std::find_if(found->second.begin(), found->second.end(),
                                 [&](const MeshAxis& each) { return each.name == axis; });
    if (at != found->second.end() && __builtin_mul_overflow(count, at->size, &count)) {
      return INT64_MAX;  // exceeds the size of any operand
    }
  }
  return count;
}

Result<Split> Partitioner::plan(const LiftedAttention& found) {
  if (is_local(found.second_product)) {
    return Split();
  }
  mlir::Operation* const computation = parent_manual_computation(found.second_product);
  if (meshes_.empty()) {
    return unsupported(
        "the module is compiled for {} partitions, and XLA cannot split a custom call; use Shardy and say with "
        "sharding constraints how queries, keys and values are split, or call the attention within shard_map",
        partitions_);
  }
  ShardingFinder finder(annotations_, meshes_);
  Split split;
  Axes of_queries;  // keys that are split like these are gathered
  const std::pair<const char*, const OperandView*> views[] = {
      {"queries", &found.q}, {"keys", &found.k}, {"values", &found.v}};
  for (const auto& [name, view] : views) {
    const auto sharding = finder.of(*view);
    const bool is_other = computation != nullptr && sharding && sharding->mesh != mesh_of(computation);
    if (!sharding || sharding->dims.size() != view->dims.size() || is_other) {
      continue;
    }
    std::string seen;
    for (size_t i = 0; i < view->dims.size(); ++i) {
      const Axes axes = own_axes(*sharding, view->dims, i);
      const char letter = view->dims[i];
      const bool is_major = seen.find(letter) == std::string::npos;
      if (shape_of(*view)[i] == 1) {
        continue;  // each device has all of it
      }
      seen += letter;
      const bool is_query = view == &found.q && letter == 's';
      if (is_query && is_major) {
        of_queries = sharding->dims[i];
      }
      // Where queries are split by heads, the only key-value head is often split by its depth, as its weights are.
      const bool is_gathered = view != &found.q && ((letter == 's' && sharding->dims[i] == of_queries) ||
                                                    (letter == 'd' && llvm::all_of(axes, [&](const std::string& axis) {
                                                       return llvm::is_contained(split.of('b').axes, axis) ||
                                                              llvm::is_contained(split.of('h').axes, axis);
                                                     })));
      if (axes.empty() || parts(sharding->mesh, axes) == 1 || is_gathered) {
        continue;
      }
      if ((letter == 's' && !is_query) || letter == 'd') {
        return unsupported("its {} are split along their {} over the axes {}; a call needs whole {}", name,
                           letter == 's' ? "sequence" : "depth", with_devices(axes),
                           letter == 's' ? "sequences of keys" : "heads");
      }
      Axes& known = split.of(is_query ? 'q' : letter).axes;
      if (is_major && known.empty() && (split.mesh.empty() || split.mesh == sharding->mesh)) {
        split.mesh = sharding->mesh;
        known = axes;
      }
    }
  }
  if (split.mesh.empty() && computation != nullptr) {
    return unsupported(
        "it is inside a manual computation over only some of the mesh's axes, and nothing says how the others split "
        "its queries, keys or values; add sharding constraints to them, or give shard_map all axes");
  }
  if (split.mesh.empty()) {
    return unsupported(
        "the module is compiled for {} partitions, and does not say that its queries, keys or values are split by "
        "batches or heads, over whole axes of a mesh with a name; add sharding constraints to them",
        partitions_);
  }
  std::map<std::string, const SplitBy*> users;
  for (SplitBy& by : split.by) {
    by.parts = parts(split.mesh, by.axes);
    for (const std::string& axis : by.axes) {
      if (const auto [other, is_new] = users.try_emplace(axis, &by); !is_new) {
        return unsupported("the axis \"{}\" splits {} of one operand and {} of another", axis, other->second->what,
                           by.what);
      }
    }
  }
  FLASHLIFT_RETURN_IF_ERROR(check_split(found, split));
  return split;
}

Status Partitioner::apply(const Split& split, mlir::Block& block) {
  if (split.is_none()) {
    return {};
  }
  llvm::SmallVector<mlir::Operation*> calls;
  for (mlir::Operation& op : block) {
    if (is_fused_call(&op) && !others_.contains(&op)) {
      calls.push_back(&op);
    }
  }
  for (mlir::Operation* call : calls) {
    FLASHLIFT_RETURN_IF_ERROR(split_call(call, split, free_axes(call, split.mesh)));
  }
  return {};
}

}  // namespace flashlift::stablehlo
