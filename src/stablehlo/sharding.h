// Annotations that split a module's tensors over devices: Shardy's dialect (sdy), and the custom calls and attributes
// of GSPMD.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "llvm/ADT/DenseMap.h"
#include "stablehlo/reader/module.h"

namespace flashlift::stablehlo {

// The mesh's axes that split each dimension of a tensor, major to minor.
struct Sharding {
  std::string mesh;
  std::vector<std::vector<std::string>> dims;

  bool splits() const;
};

// Reads "sharding<@mesh, [{"x"}, {}]>", the text after `#sdy.`. Nothing for text with more than the axes of each
// dimension, such as sub-axes.
std::optional<Sharding> parse_sharding(std::string_view text);
std::string print(const Sharding& sharding);  // from "<" on
// "sharding_per_value<[<@mesh, [{"x"}]>, ...]>"; nothing if one of them cannot be read.
std::vector<Sharding> parse_shardings(std::string_view text);
// "manual_axes{"x", "y"}"
std::vector<std::string> parse_manual_axes(std::string_view text);

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};
// "mesh<["x"=2, "y"=4]>"; nothing for other text.
std::optional<std::vector<MeshAxis>> parse_mesh(std::string_view text);

// Custom calls of GSPMD that only the partitioner uses.
bool is_sharding_call(mlir::Operation* op);  // @Sharding: its result is its operand
bool is_full_to_shard_call(
    mlir::Operation* op);  // @SPMDFullToShardShape: each device then runs the same code on its own shard
// sdy.sharding_constraint, sdy.reshard and @Sharding calls: the result equals the operand.
bool is_annotation(mlir::Operation* op);

// Whether attributes annotate an operation's results: they would have to change with the results.
bool has_annotated_results(mlir::Operation* op);

// Annotations may be between scores, exponentials and probabilities, where they prevent the evaluation of formulas.
// They are removed from a module during the search for attention; afterwards, the annotations of values that still
// exist are restored.
class Annotations {
 public:
  void open(Module& module);
  // Restores the annotations that are left. `erased`: operations that no longer exist.
  void close(const llvm::DenseSet<mlir::Operation*>& erased);
  // Deletes the annotations of values that no longer exist. Until then, other code may hold pointers to them.
  void remove_unused();

  // The annotation of a value: an attribute of Shardy, or null.
  mlir::Attribute of(mlir::Value value) const { return known_.lookup(value); }

 private:
  struct Use {
    mlir::Operation* user;
    unsigned operand;
    bool was_read;  // did the user have users itself
  };
  // A value before the rewrite. It no longer exists if `source` does not.
  struct Original {
    mlir::Value value;
    mlir::Operation* source;                 // has it as its result, or as an argument of its region
    llvm::DenseSet<mlir::Operation*> users;  // except those of an annotation
    explicit Original(mlir::Value of);
    // The uses of it that the rewrite has created after an annotation. Those before it, such as by another attention,
    // took no annotated use's place; a barrier may separate them from the annotation.
    llvm::SmallVector<mlir::OpOperand*> new_uses(mlir::Operation* annotation,
                                                 const llvm::DenseSet<mlir::Operation*>& erased) const;
  };
  struct Opened {
    mlir::Operation* annotation;   // without its operand
    mlir::Operation* placeholder;  // its operand in the meantime
    std::vector<Use> uses;
    Original operand;
    std::optional<Original> reshaped;  // the value of which the operand is a reshape
    mlir::Type type;                   // of the operand
  };
  static bool is_replaced(const Use& use, const llvm::DenseSet<mlir::Operation*>& erased);
  static void annotate_new_uses(const Opened& opened, const llvm::DenseSet<mlir::Operation*>& erased);
  std::vector<Opened> opened_;
  llvm::DenseMap<mlir::Value, mlir::Attribute> known_;
};

}  // namespace flashlift::stablehlo
