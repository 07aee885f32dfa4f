// Finding attention in StableHLO and replacing it by one fused call each. A library of its own (flashlift_stablehlo),
// so that only its users need MLIR.
//
//   Result<FuseResult> fused = stablehlo::fuse(text);
//   if (fused.ok() && fused->changed) use(fused->module);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"

#pragma GCC visibility push(default)  // this is what the shared library exports

namespace flashlift::stablehlo {

// What stands in the module in place of a found attention.
enum class FuseAs : uint8_t {
  kCustomCall,  // stablehlo.custom_call @flashlift.attention, typed FFI: runs where Flashlift's handler is registered
  kComposite,   // stablehlo.composite "flashlift.attention" that keeps the original as its decomposition: runs anywhere
};
const char* to_string(FuseAs as);

struct FuseOptions {
  FuseAs as = FuseAs::kCustomCall;
  std::string name = "<module>";  // of the module, a file name as a rule, for locations and messages
  // Whether an attention is fused whose gradient stands in the module, too: both become calls, the backward pass
  // custom_call @flashlift.attention_backward. Otherwise, and as a composite, both stay.
  bool gradients = false;
  // The form of the module that comes back: "text", "bytecode" (MLIR bytecode of StableHLO), "vhlo=1.9.0" (a portable
  // artifact of that version of StableHLO, 0.9.0 to 1.20.0), "vhlo" (of the oldest version that can say it), or ""
  // (the form it was given in).
  std::string emit;
  // How many partitions the module is compiled for, where it does not say so itself (mhlo.num_partitions). In one that
  // is compiled for several, an attention is fused within manual computations (shard_map), and where Shardy's
  // annotations say that its batches or heads are split.
  int64_t partitions = 0;
  // A module in which nothing is fused comes back empty, for callers that have it still.
  bool skip_unchanged = false;
};

// One place that looked like attention, fused or not.
struct Candidate {
  std::string location;  // "file:line:column", or the source location that the module carries
  std::string function;  // the function that it stands in, "main" as a rule
  bool fused = false;
  std::string reason;     // why not, or for a fused one what was recognised
  std::string problem;    // fused only: the one-line problem text, programs included
  std::string score_mod;  // fused only: text of the program, empty if there is none
  std::string mask_mod;   // fused only: text of the program, empty if there is none
};

struct FuseResult {
  // The input, byte for byte, when nothing was fused and no other form was asked for; empty then with skip_unchanged.
  std::string module;
  bool changed = false;
  std::vector<Candidate> candidates;  // in the order of the text

  size_t fused_count() const;
};

// Finds attention in a module and replaces it. The module may be text, StableHLO's pretty form or MLIR's generic form,
// or MLIR bytecode, of StableHLO or of VHLO (portable artifacts): its first bytes tell which.
// Errors: kInvalidArgument with line and column, or the byte, for what is not a valid module; kUnsupported for what
// cannot be read (recursive calls) or not be written in the form asked for. An attention that cannot be proved is no
// error: it stays, with a reason.
Result<FuseResult> fuse(std::string_view module, const FuseOptions& options = {});
// The same for a caller that needs the bytes no more. They are freed before the fused module is written, so that a
// large module takes twice its size at most, and not three times.
Result<FuseResult> fuse_and_free(std::string module, const FuseOptions& options = {});

// The candidates as a JSON array, as `flashlift fuse --report` writes it: objects with location, function, fused,
// reason, and for fused ones problem, score_mod and mask_mod.
std::string report_json(const FuseResult& result);

}  // namespace flashlift::stablehlo

#pragma GCC visibility pop
