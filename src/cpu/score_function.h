// Score and mask programs as functions on rows of a score tile: compiled by LLVM, or interpreted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "cpu/tile/isa.h"
#include "cpu/tile/kernels.h"
#include "flashlift/problem.h"

namespace flashlift::cpu {

// The coordinates of a tile's row in the problem.
struct RowCoordinates {
  int32_t b;
  int32_t h;
  int32_t q;
};

// A captured tensor as compiled code reads it. No size is 0.
struct CaptureView {
  const void* data;
  int64_t sizes[kMaxRank];
  int64_t strides[kMaxRank];
};

// Owns the data that a function of programs needs.
class ProgramCode {
 public:
  virtual ~ProgramCode() = default;
};

// The arguments of the compiled code. jit/emitter.cpp depends on its layout.
struct ScoreArguments {
  float* s;          // in: dot products; out: final scores, -inf where masked and in the padding
  int64_t s_stride;  // floats between rows; room for columns rounded up to whole vectors
  int64_t rows;
  int64_t kv_begin;  // the key of column 0
  int64_t columns;
  const RowCoordinates* coordinates;  // [rows]
  const CaptureView* captures;        // in the order of Problem::captures
  float* maxima;                      // [rows] out: each row's largest score (NaN ignored)
  int32_t q_len;
  int32_t kv_len;
  float scale;              // converts dot products to the scores that programs read
  const ProgramCode* code;  // the function's own object, by which the interpreter finds its programs
};
using ScoreFunction = void (*)(const ScoreArguments*);

// Owns the code of one pair of programs.
class CompiledScore : public ProgramCode {
 public:
  // Applies both programs, for any number of columns.
  ScoreFunction masked = nullptr;
  // Omits the mask program, for tiles where it is true everywhere. The number of columns must be a multiple of whole
  // vectors. Null without a score_mod.
  ScoreFunction unmasked = nullptr;
};

// The arguments of compiled gradient code. jit/gradient_emitter.cpp depends on its layout.
struct GradientArguments {
  ScoreArguments scores;  // s becomes the probabilities, 0 where masked and in the padding; maxima is not used
  float* ds;              // in: dp = <d_out, v>; out: the gradient of scale * <q, k>; same layout as s
  const RowGradient* rows;
  // Dense f32 accumulators of the captured tensors whose gradients are requested, in the order of Problem::captures. No
  // size is 0.
  const CaptureView* gradients;
};
using GradientFunction = void (*)(const GradientArguments*);

// Owns the code of one pair of programs, differentiated.
class CompiledGradient : public ProgramCode {
 public:
  GradientFunction masked = nullptr;    // as CompiledScore::masked
  GradientFunction unmasked = nullptr;  // as CompiledScore::unmasked
};

// The function of a CompiledScore or CompiledGradient for a tile; `whole`: its columns are whole vectors. Null if none
// is needed: without programs, and on a full tile of a problem that has only a mask.
template <typename Compiled>
auto function_for_tile(const Compiled* compiled, const Problem& problem, bool partial, bool whole) {
  using Function = decltype(compiled->masked);
  if (compiled == nullptr) {
    return Function{nullptr};
  }
  return partial || (problem.score_mod && !whole) ? compiled->masked : compiled->unmasked;
}

// Whether LLVM compiles programs for these kernels, and those of a problem. They are interpreted otherwise.
bool compiles_programs(Isa isa);
bool compiles_programs(const Problem& problem, Isa isa);

// For a verified problem with a program; wants_gradient is in the order of Problem::captures.
Result<std::shared_ptr<const CompiledGradient>> compile_gradient(const Problem& problem, Isa isa,
                                                                 const std::vector<bool>& wants_gradient);

// Compiles the programs of a verified problem, which has at least one.
Result<std::shared_ptr<const CompiledScore>> compile_score(const Problem& problem, Isa isa);
// The same code as readable assembly text.
Result<std::string> score_assembly(const Problem& problem, Isa isa);

}  // namespace flashlift::cpu
