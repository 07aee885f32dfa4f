// How a module says that its tensors are split over devices: Shardy's dialect (sdy), and the custom calls and
// attributes that GSPMD reads.
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

// "sharding<@mesh, [{"x"}, {}]>", as `#sdy.` goes before it. Nothing for text that says more than which axes split
// which dimension, such as parts of axes.
std::optional<Sharding> parse_sharding(std::string_view text);
std::string print(const Sharding& sharding);  // from "<" on
// "sharding_per_value<[<@mesh, [{"x"}]>, ...]>"; nothing where one of them is not read.
std::vector<Sharding> parse_shardings(std::string_view text);
// "manual_axes{"x", "y"}"
std::vector<std::string> parse_manual_axes(std::string_view text);

struct MeshAxis {
  std::string name;
  int64_t size = 1;
};
// "mesh<["x"=2, "y"=4]>"; nothing for other text.
std::optional<std::vector<MeshAxis>> parse_mesh(std::string_view text);

// Custom calls of GSPMD that have no meaning but for the partitioner.
bool is_sharding_call(mlir::Operation* op);       // @Sharding: its result is its operand
bool is_full_to_shard_call(mlir::Operation* op);  // @SPMDFullToShardShape: what follows is the same on each device
// sdy.sharding_constraint, sdy.reshard and @Sharding calls: the result is the operand, number for number.
bool is_annotation(mlir::Operation* op);

// Annotations stand between scores, exponentials and probabilities, and are in the way of what follows formulas. They
// are taken out of a module while attention is looked for, and those whose values are still there go back.
class Annotations {
 public:
  void open(Module& module);
  // Puts back what is left. `erased`: operations that are gone.
  void close(const llvm::DenseSet<mlir::Operation*>& erased);
  // Removes the annotations of which nothing is left; before that, others may hold on to them.
  void remove_unused();

  // What an annotation said of a value: an attribute of Shardy, or null.
  mlir::Attribute of(mlir::Value value) const { return known_.lookup(value); }

 private:
  struct Use {
    mlir::Operation* user;
    unsigned operand;
  };
  struct Opened {
    mlir::Operation* annotation;   // without its operand
    mlir::Operation* placeholder;  // which is its operand meanwhile
    std::vector<Use> uses;
  };
  std::vector<Opened> opened_;
  llvm::DenseMap<mlir::Value, mlir::Attribute> known_;
};

}  // namespace flashlift::stablehlo
