// The main part of the backward pass: the kernels with the matrix products, one implementation for each kernel family.
//
// A call runs preprocess, main and postprocess on one stream (launch/backward.cpp). A new family needs an alternative
// of BackwardConfig, a BackwardMain and its overloads in main.cpp; preprocess and postprocess do not know the families.
#pragma once

#include <memory>

#include "cuda/emit/kernel_source.h"
#include "cuda/kernels/common/backward_params.h"
#include "cuda/launch/loaded_kernel.h"
#include "flashlift/backward.h"

namespace flashlift::cuda {

// What a main part wants to know of each row of scores, and who finds it out.
struct RowStatistics {
  // 0: records of type RowGradient in BackwardParams::rows. Otherwise tiles of so many rows: BackwardCall::row_tiles.
  int tile = 0;
  // The preprocess computes them, from lse, out, d_out and d_lse. Tiles only, and lse must be there. False: the main
  // part writes them, before the postprocess reads them.
  bool from_output = false;
  // In how many parts blocks add to a tile's d_q, in the order of RowTiles::last_adders. 0: they do not.
  int parts = 0;
  bool asks_for_large = false;  // is RowTiles::any_large read
  int ring_keys = 0;            // keys of each element of RowTiles::left_keys. 0: there is none
};
RowStatistics row_statistics(const BackwardConfig& config);
// Device memory of its own that BackwardMain::launch() gets, which may hold anything. Reads shapes and lengths only.
int64_t main_workspace_bytes(const BackwardConfig& config, const Device& device, const ForwardParams& params);

// One call, as preprocess, main and postprocess see it.
struct BackwardCall {
  const Driver& driver;
  const Problem& problem;
  const BackwardArguments& arguments;  // verified; their memory is the device's
  CuStream stream = nullptr;

  // Complete before the main part is launched, except for what depends on its tiles: ForwardParams' tensor maps,
  // counters, partials, q_tiles, total_tiles and heads_per_section, and BackwardParams::kv_tiles. The call belongs to
  // the thread that runs it: the main part may fill these in.
  ForwardParams forward;
  // Pointers of gradients that are not wanted are null. d_out is of the inputs' type, converted if need be.
  BackwardParams backward;
  RowTiles row_tiles;  // if RowStatistics::tile is not 0
};

class BackwardMain {
 public:
  virtual ~BackwardMain() = default;

  // Why the kernels cannot run a call: a layout that they cannot read, more tiles than one launch numbers. Asked before
  // anything is launched. Errors: kUnsupported with the reason.
  virtual Status accepts(const BackwardCall& call) const = 0;
  // Launches all that gives d_q, d_k and d_v.
  // What it accumulates elsewhere, such as f32 sums of d_q, it also clears and converts: no one else knows their
  // layout.
  virtual Status launch(BackwardCall& call, CuPointer workspace) const = 0;
};

// The kernels compile side by side.
Result<std::unique_ptr<const BackwardMain>> compile_main(const Problem& problem, const Device& device,
                                                         const BackwardConfig& config,
                                                         const KernelCompiler& compile_kernel);

}  // namespace flashlift::cuda
