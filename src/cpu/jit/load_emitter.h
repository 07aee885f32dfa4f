// Loads from captured tensors: clamped indices, and the cheapest access that the strides and the indices allow.
#pragma once

#include <llvm/IR/IRBuilder.h>

#include <vector>

#include "flashlift/program.h"

namespace flashlift::cpu {

// An index operand of a load.
struct LoadIndex {
  llvm::Value* value = nullptr;  // a scalar if the index is the same for all keys, otherwise a vector
  int direction = 0;             // +1 or -1: known to change by that from key to key; 0: unknown
  bool is_query = false;         // increases by one from row to row
};

class LoadEmitter {
 public:
  LoadEmitter(llvm::IRBuilder<>& builder, int lanes) : ir_(builder), lanes_(lanes) {}

  // Emits reads of the captured tensor's data pointer, sizes and strides. Must be called once, at the start of the
  // function.
  void declare(const Capture& capture, llvm::Value* captures, size_t position);
  // The element(s) at these indices as the scalar type of the capture; a scalar if all indices are uniform. `capture`
  // counts in the order of declare(). May open new basic blocks.
  llvm::Value* emit(size_t capture, const std::vector<LoadIndex>& indices);
  // Emits the number of elements of a 1-D tensor of integers that are <= x, as i32, by the algorithm in ops.def. Opens
  // new basic blocks.
  llvm::Value* search(size_t capture, llvm::Value* x);

  // Adds the lanes of an f32 vector, in order, to the elements of an f32 tensor at these indices, of which at least one
  // varies. May open new basic blocks.
  void accumulate(size_t capture, const std::vector<LoadIndex>& indices, llvm::Value* value);
  // The address of an element of an f32 tensor, all of whose indices are uniform.
  llvm::Value* address(size_t capture, const std::vector<LoadIndex>& indices);

 private:
  struct Tensor {
    Capture capture;
    llvm::Value* data;
    std::vector<llvm::Value*> sizes;
    std::vector<llvm::Value*> strides;
  };

  llvm::Value* clamp(llvm::Value* index, llvm::Value* size);
  // The offset from the uniform indices.
  llvm::Value* uniform_offset(const Tensor& tensor, const std::vector<LoadIndex>& indices);
  // The offset of each lane: `offset` plus the part of the varying indices.
  llvm::Value* lane_offsets(const Tensor& tensor, llvm::Value* offset, const std::vector<LoadIndex>& indices);
  // The first element of a vector of neighbours, and whether this vector is one; see contiguous().
  llvm::Value* contiguous_begin(const LoadIndex& index);
  llvm::Value* is_contiguous(const Tensor& tensor, size_t varying, llvm::Value* begin);
  void scatter(const Tensor& tensor, llvm::Value* offsets, llvm::Value* value);
  llvm::Value* gather(const Tensor& tensor, llvm::Value* offset, const std::vector<LoadIndex>& indices);
  llvm::Value* contiguous(const Tensor& tensor, llvm::Value* offset, size_t varying,
                          const std::vector<LoadIndex>& indices);
  // If a dimension is indexed by the query, prefetches the same keys of a later row.
  void prefetch_row(const Tensor& tensor, const std::vector<LoadIndex>& indices, llvm::Type* element,
                    llvm::Value* address, bool writes);
  llvm::Value* widen(const Tensor& tensor, llvm::Value* element);
  llvm::Type* memory_type(DType dtype);

  llvm::IRBuilder<>& ir_;
  int lanes_;
  std::vector<Tensor> tensors_;
};

}  // namespace flashlift::cpu
