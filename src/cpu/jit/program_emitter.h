// Shared by functions that are generated from score programs: coordinates of rows and keys, nodes as IR, arguments.
#pragma once

#include <llvm/IR/IRBuilder.h>
#include <llvm/IR/Module.h>

#include <cstddef>
#include <vector>

#include "cpu/jit/load_emitter.h"
#include "cpu/jit/op_emitter.h"
#include "cpu/score_function.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

// How a value changes along the keys of a row.
struct Shape {
  bool uniform = true;
  int direction = 0;  // see LoadIndex
};

// The rows of a tile are the outer loop, vectors of keys the inner one. A value that does not depend on the key (or the
// score) is computed once per row, as a scalar.
class ProgramEmitter {
 public:
  ProgramEmitter(llvm::Module& module, const Problem& problem, Isa isa);

 protected:
  struct ProgramState {
    const Program* program;
    std::vector<Shape> shapes;
    std::vector<llvm::Value*> values;
    std::vector<size_t> captures;  // maps the program's captures to the problem's
  };

  llvm::Value* field(llvm::Type* type, size_t offset) {
    return ir_.CreateLoad(type, ir_.CreateConstInBoundsGEP1_64(ir_.getInt8Ty(), arguments_, offset));
  }
  llvm::Value* splat(llvm::Value* x) {
    return x->getType()->isVectorTy() ? x : ir_.CreateVectorSplat(static_cast<unsigned>(lanes_), x);
  }
  llvm::BasicBlock* block(const char* name) { return llvm::BasicBlock::Create(module_.getContext(), name, function_); }
  llvm::FixedVectorType* vector_of(llvm::Type* type) {
    return llvm::FixedVectorType::get(type, static_cast<unsigned>(lanes_));
  }

  // Emits a loop of body(i) for i = 0, step, 2 step, ... below `end`, at least once. The body may carry values from one
  // iteration to the next by PHI nodes, which must come first.
  template <typename Body>
  void emit_loop(const char* name, llvm::Value* end, int step, const Body& body) {
    llvm::BasicBlock* before = ir_.GetInsertBlock();
    llvm::BasicBlock* loop = block(name);
    ir_.CreateBr(loop);
    ir_.SetInsertPoint(loop);
    llvm::PHINode* i = ir_.CreatePHI(ir_.getInt64Ty(), 2);
    i->addIncoming(ir_.getInt64(0), before);
    body(i);
    llvm::Value* next = ir_.CreateAdd(i, ir_.getInt64(static_cast<uint64_t>(step)));
    i->addIncoming(next, ir_.GetInsertBlock());
    llvm::BasicBlock* done = block("done");
    ir_.CreateCondBr(ir_.CreateICmpSLT(next, end), loop, done);
    ir_.SetInsertPoint(done);
  }
  // The loop over the rows, with each row's coordinates and the values that depend only on them.
  template <typename Body>
  void emit_rows(const Body& body) {
    llvm::Value* rows = field(ir_.getInt64Ty(), offsetof(ScoreArguments, rows));
    emit_loop("rows", rows, 1, [&](llvm::Value* row) {
      set_row(row);
      for (ProgramState& state : programs_) {
        emit_nodes(state, true);
      }
      body(row);
    });
  }

  // Starts a function with one argument, a pointer to a structure that starts with ScoreArguments.
  void open_function(const char* name);
  void add_program(const Program& program);
  void emit_nodes(ProgramState& state, bool uniform);
  llvm::Value* input(Op op) const;
  llvm::Value* emit_node(ProgramState& state, const Node& node);
  llvm::Value* constant(const Node& node);
  std::vector<LoadIndex> load_indices(const ProgramState& state, const Node& node);
  void set_row(llvm::Value* row);
  void set_column(llvm::Value* column);
  // The lanes that are keys, not past the last column. Only the last vector has others, but a comparison is cheaper
  // than a second copy of the loop.
  llvm::Value* inside();

  llvm::Module& module_;
  const Problem& problem_;
  Isa isa_;
  int lanes_;
  llvm::IRBuilder<> ir_;
  OpEmitter ops_;
  LoadEmitter loads_;

  llvm::Function* function_ = nullptr;
  llvm::Value* arguments_ = nullptr;
  llvm::Value* columns_ = nullptr;
  llvm::Value* kv_begin_ = nullptr;
  llvm::Value* coordinates_ = nullptr;
  llvm::Value* q_len_ = nullptr;
  llvm::Value* kv_len_ = nullptr;
  llvm::Value* scale_ = nullptr;
  // Values of the current row.
  llvm::Value* b_ = nullptr;
  llvm::Value* h_ = nullptr;
  llvm::Value* q_ = nullptr;
  // Values of the current vector.
  llvm::Value* column_ = nullptr;
  llvm::Value* kv_ = nullptr;
  llvm::Value* score_ = nullptr;
  std::vector<ProgramState> programs_;
};

}  // namespace flashlift::cpu
