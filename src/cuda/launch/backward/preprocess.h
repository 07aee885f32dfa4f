// The preprocess of the backward pass: bounds of captured tensors' blocks, d_out in the inputs' type, and the row
// statistics that follow from the forward pass's output.
#pragma once

#include <memory>

#include "cuda/launch/backward/call_memory.h"
#include "cuda/launch/backward/main.h"
#include "cuda/launch/bounds_pass.h"

namespace flashlift::cuda {

class Preprocess {
 public:
  Preprocess(const Problem& problem, const Device& device, const RowStatistics& statistics);
  // Before that, it can only be asked where its pieces lie.
  Status compile(const KernelCompiler& compile_kernel);

  // Where its pieces lie in the memory of a call of these lengths.
  struct Places {
    int64_t rows = 0;
    int64_t flags = 0;  // any_large and any_empty
    int64_t low_flag = 0;
    int64_t high = 0;
    int64_t low = 0;
    int64_t bounds = 0;
  };
  Places lay_out(const ForwardParams& params, Layout& layout) const;
  // Lets the call's kernels know.
  void place(const Places& places, CuPointer memory, BackwardCall& call) const;

  Status launch(const Places& places, CuPointer memory, BackwardCall& call) const;

 private:
  // The integers of RowTiles.
  int64_t flag_count(const ForwardParams& params) const;
  int64_t part_count(const ForwardParams& params) const;  // of d_q
  int64_t d_out_bytes(const ForwardParams& params) const;
  void place_d_out(const Places& places, CuPointer memory, BackwardCall& call) const;
  Status fill_row_tiles(BackwardCall& call, CuPointer bounds) const;

  Problem problem_;
  Device device_;
  RowStatistics statistics_;
  bool converts_d_out_;
  BoundsPasses bounds_;
  std::shared_ptr<const LoadedLibrary> library_;  // null: there is nothing to do
  CuKernel convert_d_out_ = nullptr;
  CuKernel row_tiles_ = nullptr;
};

}  // namespace flashlift::cuda
