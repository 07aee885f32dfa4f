#include "stablehlo/shared_passes.h"

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "flashlift/problem.h"
#include "mlir/IR/Builders.h"
#include "mlir/IR/BuiltinTypes.h"
#include "stablehlo/lift/same_value.h"
#include "stablehlo/manual_computations.h"
#include "stablehlo/reader/normalize.h"
#include "stablehlo/reader/ops.h"
#include "stablehlo/rewrite/build.h"
#include "stablehlo/sharding.h"
#include "stablehlo/sharding_finder.h"

namespace flashlift::stablehlo {
namespace {

constexpr std::string_view kForward = "flashlift.attention";
constexpr std::string_view kBackward = "flashlift.attention_backward";

bool calls(mlir::Operation* op, std::string_view target) {
  const auto call = custom_call(op);
  return call && call->target == target;
}

mlir::DictionaryAttr config_of(mlir::Operation* call) {
  return mlir::cast<mlir::DictionaryAttr>(custom_call(call)->backend_config);
}

std::string word(mlir::Operation* call, llvm::StringRef name) {
  const auto value = config_of(call).getAs<mlir::StringAttr>(name);
  return value ? value.str() : std::string();
}

// A tensor and the letters of its dimensions, '1' for those of size 1.
struct Lettered {
  mlir::Value value;
  std::string dims;
  int64_t repeats = 1;  // of each head, in the tensor that this is the source of

  Lettered(mlir::Value of, std::string letters) : value(of), dims(std::move(letters)) {
    for (size_t i = 0; i < dims.size(); ++i) {
      dims[i] = shape(value)[i] == 1 ? '1' : dims[i];
    }
  }

  // The tensor that is transposed, reshaped, or repeated for several heads to give this one.
  Lettered source() const {
    Lettered found = *this;
    while (mlir::Operation* op = found.value.getDefiningOp()) {
      const bool moved = kind(op) == OpKind::kReshape          ? found.move_through_reshape(op)
                         : kind(op) == OpKind::kTranspose      ? found.move_through_transpose(op)
                         : kind(op) == OpKind::kBroadcastInDim ? found.move_through_broadcast(op)
                                                               : false;
      if (!moved) {
        break;
      }
      found.value = op->getOperand(0);
    }
    return found;
  }

 private:
  // A dimension may become several with its letter, or several with one letter become one.
  bool move_through_reshape(mlir::Operation* op) {
    const llvm::ArrayRef<int64_t> before = shape(op->getOperand(0));
    const llvm::ArrayRef<int64_t> after = shape(value);
    std::string moved(before.size(), '1');
    size_t i = 0;
    size_t j = 0;
    while (i < before.size() || j < after.size()) {
      if (i < before.size() && before[i] == 1) {
        ++i;
      } else if (j < after.size() && after[j] == 1) {
        ++j;
      } else if (i == before.size() || j == after.size()) {
        return false;
      } else {
        const char letter = dims[j];
        moved[i] = letter;
        int64_t size = before[i++];
        int64_t size_after = after[j++];
        while (size != size_after) {
          if (size < size_after && i < before.size()) {
            moved[i] = before[i] == 1 ? '1' : letter;
            size *= before[i++];
          } else if (size > size_after && j < after.size() && (after[j] == 1 || dims[j] == letter)) {
            size_after *= after[j++];
          } else {
            return false;
          }
        }
      }
    }
    dims = moved;
    return true;
  }

  bool move_through_transpose(mlir::Operation* op) {
    const auto order = permutation(op);
    std::string moved(dims.size(), '1');
    for (size_t i = 0; i < dims.size(); ++i) {
      for (size_t j = i + 1; j < dims.size(); ++j) {
        if (dims[i] != '1' && dims[i] == dims[j] && order[i] > order[j]) {
          return false;  // the digits of an index would change their order
        }
      }
      moved[static_cast<size_t>(order[i])] = dims[i];
    }
    dims = moved;
    return true;
  }

  // Only the least significant digit of the heads may be repeated: each head several times, one after the other.
  bool move_through_broadcast(mlir::Operation* op) {
    const auto places = broadcast_dims(op);
    const llvm::ArrayRef<int64_t> before = shape(op->getOperand(0));
    std::string moved(before.size(), '1');
    std::string left(dims.size(), '1');
    for (size_t i = 0; i < places.size(); ++i) {
      const auto at = static_cast<size_t>(places[i]);
      if (i > 0 && places[i] < places[i - 1]) {
        return false;
      }
      moved[i] = left[at] = before[i] == 1 ? '1' : dims[at];
    }
    const size_t last = left.rfind('h');
    for (size_t i = 0; i < dims.size(); ++i) {
      if (dims[i] == left[i]) {
        continue;
      }
      if (dims[i] != 'h' || (last != std::string::npos && i < last)) {
        return false;
      }
      repeats *= shape(value)[i];
    }
    dims = moved;
    return true;
  }
};

// What a problem computes, apart from what it returns, how its tensors are called, and how many heads share keys.
std::string meaning(Problem problem) {
  std::map<std::string, std::string> names;
  for (Capture& capture : problem.captures) {
    capture.name = names[capture.name] = "t" + std::to_string(names.size());
  }
  for (auto* program : {&problem.score_mod, &problem.mask_mod}) {
    if (*program) {
      for (Capture& capture : (**program).captures) {
        capture.name = names[capture.name];
      }
    }
  }
  problem.want_lse = problem.d_out_like_inputs = false;
  problem.out_dtype = DType::kF32;
  problem.kv_heads = 1;  // compared with keys and values, which may be repeated
  return print(problem);
}

struct SharedCall {
  mlir::Operation* own;       // in the forward pass
  mlir::Operation* repeated;  // in the backward pass
};

class Sharer {
 public:
  Sharer(Computation forward, Computation backward) : forward_(std::move(forward)), backward_(std::move(backward)) {
    for (const auto [i, operand] : llvm::enumerate(backward_.op->getOperands())) {
      const mlir::Value argument = backward_.body().getArgument(static_cast<unsigned>(i));
      if (operand.getDefiningOp() == forward_.op) {
        const unsigned number = mlir::cast<mlir::OpResult>(operand).getResultNumber();
        if (forward_.out[number] == backward_.in[i]) {
          known_.map(argument, forward_.end()->getOperand(number));
        }
      }
      for (const auto [j, theirs] : llvm::enumerate(forward_.op->getOperands())) {
        if (theirs == operand && forward_.in[j] == backward_.in[i]) {
          known_.map(argument, mlir::Value(forward_.body().getArgument(static_cast<unsigned>(j))));
        }
      }
    }
  }

  // Whether any calls are shared. `devices`: the sharding of a dimension with one element for each device.
  bool run(const Sharding& devices, int64_t count) {
    std::vector<SharedCall> shared;
    std::vector<mlir::Operation*> left;
    for (mlir::Operation& op : forward_.body()) {
      if (calls(&op, kForward)) {
        left.push_back(&op);
      }
    }
    for (mlir::Operation& op : backward_.body()) {
      if (!calls(&op, kForward) || !is_read_by_backward_calls(&op)) {
        continue;
      }
      const auto own = llvm::find_if(left, [&](mlir::Operation* call) { return are_same(call, &op); });
      if (own != left.end()) {
        shared.push_back({*own, &op});
        left.erase(own);
      }
    }
    if (!shared.empty()) {
      share(shared, devices, count);
    }
    return !shared.empty();
  }

 private:
  bool is_read_by_backward_calls(mlir::Operation* call) {
    return call->getNumResults() == 2 && llvm::all_of(call->getUsers(), [&](mlir::Operation* user) {
             return calls(user, kBackward) && user->getBlock() == &backward_.body();
           });
  }

  bool are_same(mlir::Operation* own, mlir::Operation* repeated) {
    if (own->getNumOperands() != repeated->getNumOperands() ||
        (own->getNumResults() == 2 && (word(own, "lse_dims") != word(repeated, "lse_dims") ||
                                       own->getResult(1).getType() != repeated->getResult(1).getType()))) {
      return false;
    }
    for (const llvm::StringRef name : {"captures", "implementation", "lengths"}) {  // only front ends write these
      if (config_of(own).get(name) || config_of(repeated).get(name)) {
        return false;
      }
    }
    const auto problem = parse_problem(word(own, "problem"));
    const auto other = parse_problem(word(repeated, "problem"));
    if (!problem.ok() || !other.ok() || meaning(*problem) != meaning(*other)) {
      return false;
    }
    Slice slice(backward_.body(), known_);
    if (!llvm::all_of(repeated->getOperands(), [&](mlir::Value each) { return slice.add(each); }) ||
        !slice.arguments.empty()) {
      return false;
    }
    // Only copies in the same computation can be compared.
    mlir::IRMapping copies = known_;
    std::vector<mlir::Operation*> added;
    mlir::OpBuilder builder(forward_.end());
    for (mlir::Operation& op : backward_.body()) {
      if (slice.operations.contains(&op)) {
        added.push_back(builder.clone(op, copies));
      }
    }
    bool same = true;
    for (size_t i = 0; i < own->getNumOperands() && same; ++i) {
      const mlir::Value x = own->getOperand(static_cast<unsigned>(i));
      const mlir::Value y = copies.lookup(repeated->getOperand(static_cast<unsigned>(i)));
      if (i >= std::size(kDims)) {
        same = SameValues()(x, y);
        continue;
      }
      const Lettered of_x = Lettered(x, word(own, kDims[i])).source();
      const Lettered of_y = Lettered(y, word(repeated, kDims[i])).source();
      const bool as_often =
          i == 0 ? of_x.repeats == of_y.repeats : problem->kv_heads * of_y.repeats == other->kv_heads * of_x.repeats;
      same = as_often && of_x.dims == of_y.dims && SameValues()(of_x.value, of_y.value);
    }
    for (mlir::Operation* op : llvm::reverse(added)) {
      op->erase();
    }
    return same;
  }

  void share(const std::vector<SharedCall>& shared, const Sharding& devices, int64_t count) {
    AddedResults added;
    llvm::SmallVector<mlir::Value> returned;
    mlir::OpBuilder inside(&backward_.body(), backward_.body().begin());
    for (const auto& [own, repeated] : shared) {
      mlir::Operation* const now = with_results_for_gradient(own, repeated);
      mlir::IRMapping parts;  // what the backward pass gets instead of the repeated call's results
      for (const auto [result, replaced] : llvm::zip_equal(now->getResults(), repeated->getResults())) {
        auto type = mlir::cast<mlir::RankedTensorType>(result.getType());
        llvm::SmallVector<int64_t> sizes(type.getShape());
        Sharding sharding = devices;
        sharding.dims.resize(sizes.size() + 1);
        sizes.insert(sizes.begin(), 1);
        mlir::OpBuilder builder(forward_.end());
        returned.push_back(reshape(builder, own->getLoc(), result, sizes));
        const mlir::Value argument = backward_.body().addArgument(type.clone(sizes), own->getLoc());
        sizes[0] = count;
        added.types.push_back(type.clone(sizes));
        added.shardings.push_back(print(sharding));
        parts.map(replaced, reshape(inside, own->getLoc(), argument, type.getShape()));
      }
      const llvm::SetVector<mlir::Operation*> readers(repeated->user_begin(), repeated->user_end());
      for (mlir::Operation* reader : readers) {
        read_instead(reader, parts, word(own, "out_dims"));
      }
      repeated->erase();
      own->erase();
    }
    forward_.end()->insertOperands(forward_.end()->getNumOperands(), returned);
    mlir::Operation* const forward = with_operands(forward_, forward_.op->getOperands(), forward_.in, added);
    llvm::SmallVector<mlir::Value> operands(backward_.op->getOperands());
    llvm::append_range(operands, forward->getResults().take_back(added.types.size()));
    Shardings in = backward_.in;
    llvm::append_range(in, added.shardings);
    with_operands(backward_, operands, in);
  }

  // The forward pass's call, with the results that the backward pass reads.
  static mlir::Operation* with_results_for_gradient(mlir::Operation* own, mlir::Operation* repeated) {
    const Problem theirs = *parse_problem(word(repeated, "problem"));
    Problem problem = *parse_problem(word(own, "problem"));
    problem.want_lse = true;
    problem.out_dtype = theirs.out_dtype;
    problem.d_out_like_inputs = theirs.d_out_like_inputs;
    mlir::OpBuilder builder(own);
    mlir::NamedAttrList entries(config_of(own));
    entries.set("problem", builder.getStringAttr(print(problem)));
    entries.set("lse_dims", builder.getStringAttr(word(repeated, "lse_dims")));
    auto out = mlir::cast<mlir::RankedTensorType>(own->getResult(0).getType());
    const auto element = mlir::cast<mlir::RankedTensorType>(repeated->getResult(0).getType()).getElementType();
    const mlir::Type types[] = {out.clone(element), repeated->getResult(1).getType()};
    mlir::Operation* now = fused_call(builder, own->getLoc(), kForward, own->getOperands(), types,
                                      entries.getDictionary(own->getContext()));
    own->getResult(0).replaceAllUsesWith(convert(builder, own->getLoc(), now->getResult(0), out.getElementType()));
    if (own->getNumResults() == 2) {
      own->getResult(1).replaceAllUsesWith(now->getResult(1));
    }
    return now;
  }

  // Replaces a backward call by one that reads other results of the forward pass, of which the output has these
  // dimensions.
  static void read_instead(mlir::Operation* call, const mlir::IRMapping& results, const std::string& out_dims) {
    mlir::OpBuilder builder(call);
    mlir::NamedAttrList entries(config_of(call));
    if (!entries.get("d_out_dims")) {
      entries.set("d_out_dims", entries.get("out_dims"));
    }
    entries.set("out_dims", builder.getStringAttr(out_dims));
    const auto operands =
        llvm::map_to_vector(call->getOperands(), [&](mlir::Value each) { return results.lookupOrDefault(each); });
    mlir::Operation* const now = fused_call(builder, call->getLoc(), kBackward, operands, call->getResultTypes(),
                                            entries.getDictionary(call->getContext()));
    call->replaceAllUsesWith(now);
    call->erase();
  }

  static constexpr llvm::StringRef kDims[] = {"q_dims", "k_dims", "v_dims"};

  Computation forward_;
  Computation backward_;
  mlir::IRMapping known_;  // from values of the backward pass to those of the forward pass
};

// The devices of a manual computation, as the sharding of one dimension, and their number; 0 if its mesh has no name.
std::pair<Sharding, int64_t> devices_of(const Computation& computation, const Meshes& meshes) {
  const auto shardings = parse_shardings(shardy_text(computation.op->getAttr("in_shardings")));
  const auto mesh = shardings.empty() ? meshes.end() : meshes.find(shardings.front().mesh);
  if (mesh == meshes.end()) {
    return {};
  }
  const std::vector<std::string> axes = parse_manual_axes(shardy_text(computation.op->getAttr("manual_axes")));
  int64_t count = 1;
  for (const MeshAxis& axis : mesh->second) {
    count *= llvm::is_contained(axes, axis.name) ? axis.size : 1;
  }
  return {Sharding{mesh->first, {axes}}, count};
}

bool share_some(Module& module, const Meshes& meshes) {
  std::vector<mlir::Operation*> computations;
  module.op()->walk([&](mlir::Operation* op) {
    if (kind(op) == OpKind::kSdyManualComputation) {
      computations.push_back(op);
    }
  });
  for (mlir::Operation* op : computations) {
    const auto backward = computation_of(op);
    const auto passes = op->getAttrOfType<mlir::ArrayAttr>(kForwardPasses);
    for (mlir::Operation* earlier : computations) {
      const bool is_repeated = passes && llvm::is_contained(passes, earlier->getAttr(kForwardPass));
      const auto forward = backward && is_repeated ? forward_pass_of(earlier, *backward) : std::nullopt;
      const auto [devices, count] = forward ? devices_of(*forward, meshes) : std::pair<Sharding, int64_t>();
      if (count > 0 && Sharer(*forward, *backward).run(devices, count)) {
        return true;
      }
    }
  }
  return false;
}

}  // namespace

void share_forward_passes(Module& module) {
  Meshes meshes;
  module.op()->walk([&](mlir::Operation* op) {
    const auto name = op->getAttrOfType<mlir::StringAttr>("sym_name");
    const auto mesh = kind(op) == OpKind::kSdyMesh ? parse_mesh(shardy_text(op->getAttr("mesh"))) : std::nullopt;
    if (name && mesh) {
      meshes[name.str()] = *mesh;
    }
  });
  bool any = false;
  while (share_some(module, meshes)) {  // each time, a computation has fewer calls
    any = true;
  }
  module.op()->walk([](mlir::Operation* op) {
    op->removeDiscardableAttr(kForwardPass);
    op->removeDiscardableAttr(kForwardPasses);
  });
  if (any) {
    remove_dead_code(module);
  }
}

}  // namespace flashlift::stablehlo
