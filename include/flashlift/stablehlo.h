// Finds attention in a StableHLO module and replaces each one by a fused call. It is a separate library
// (flashlift_stablehlo), so that only its users need MLIR.
//
//   Result<FuseResult> fused = stablehlo::fuse(text);
//   if (fused.ok() && fused->changed) use(fused->module);
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "flashlift/result.h"

#pragma GCC visibility push(default)  // the shared library exports these declarations

namespace flashlift::stablehlo {

// The operation that replaces an attention in the module.
enum class FuseAs : uint8_t {
  kCustomCall,  // stablehlo.custom_call @flashlift.attention, typed FFI: runs if Flashlift's handler is registered
  kComposite,   // stablehlo.composite "flashlift.attention" that keeps the original as its decomposition: runs anywhere
};
const char* to_string(FuseAs as);

struct FuseOptions {
  FuseAs as = FuseAs::kCustomCall;
  std::string name = "<module>";  // the module's name for locations and messages, usually a file name
  // True: if the module also contains the gradient of an attention, both are fused; the gradient becomes custom_call
  // @flashlift.attention_backward. Otherwise, and as a composite, both stay unfused.
  bool gradients = false;
  // The form of the returned module: "text", "bytecode" (MLIR bytecode of StableHLO), "vhlo=1.9.0" (a portable artifact
  // of that version of StableHLO, 0.9.0 to 1.20.0), "vhlo" (of the oldest version that can represent it), or "" (the
  // form of the input).
  std::string emit = {};
  // The number of partitions that the module is compiled for, if the module itself does not give it
  // (mhlo.num_partitions). With several partitions, an attention is fused inside manual computations (shard_map), and
  // if Shardy's annotations split its batches or heads.
  int64_t partitions = 0;
  // If nothing is fused, the returned module is empty, for callers that still have the input.
  bool skip_unchanged = false;
};

// One place that looked like attention, fused or not.
struct Candidate {
  std::string location;  // "file:line:column", or the source location that the module carries
  std::string function;  // the function that contains it, usually "main"
  bool fused = false;
  std::string reason;     // why it stays unfused; if fused, what was recognised
  std::string problem;    // fused only: the one-line problem text, programs included
  std::string score_mod;  // fused only: text of the program, empty if there is none
  std::string mask_mod;   // fused only: text of the program, empty if there is none
};

struct FuseResult {
  // If nothing was fused and no other form was requested: the input, byte for byte, or empty with skip_unchanged.
  std::string module;
  bool changed = false;
  std::vector<Candidate> candidates;  // in the order of the text

  size_t fused_count() const;
};

// Finds attention in a module and replaces it. The module may be text, StableHLO's pretty form or MLIR's generic form,
// or MLIR bytecode, of StableHLO or of VHLO (portable artifacts): its first bytes determine which. Errors:
// kInvalidArgument with line and column, or the byte, for an invalid module; kUnsupported for a module that cannot be
// read (recursive calls) or cannot be written in the requested form. An attention that cannot be proved is not an
// error: it stays unfused, with a reason.
Result<FuseResult> fuse(std::string_view module, const FuseOptions& options = {});
// The same for a caller that no longer needs the bytes. They are freed before the fused module is written, so that a
// large module takes at most twice its size, and not three times.
Result<FuseResult> fuse_and_free(std::string module, const FuseOptions& options = {});

// The candidates as a JSON array, as `flashlift fuse --report` writes it: objects with location, function, fused,
// reason, and for fused ones problem, score_mod and mask_mod.
std::string report_json(const FuseResult& result);

}  // namespace flashlift::stablehlo

#pragma GCC visibility pop
