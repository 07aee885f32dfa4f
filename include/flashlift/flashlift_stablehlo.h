/* Finding attention in a StableHLO module and replacing it, from C. Library: flashlift_stablehlo (it carries MLIR).
 *
 *   FlashliftFused* fused = NULL;
 *   FlashliftError* error = flashlift_stablehlo_fuse(text, strlen(text), NULL, &fused);
 *   if (error == NULL && flashlift_fused_count(fused) > 0) use(flashlift_fused_module(fused, &size));
 *   flashlift_fused_destroy(fused);
 */
#ifndef FLASHLIFT_FLASHLIFT_STABLEHLO_H_
#define FLASHLIFT_FLASHLIFT_STABLEHLO_H_

#include "flashlift/flashlift.h"

#ifdef __cplusplus
#pragma GCC visibility push(default)
extern "C" {
#endif

typedef enum FlashliftFuseAs {
  FLASHLIFT_CUSTOM_CALL = 0, /* custom_call @flashlift.attention: runs if Flashlift's handler is registered */
  FLASHLIFT_COMPOSITE = 1    /* composite "flashlift.attention" with the original as its decomposition: runs anywhere */
} FlashliftFuseAs;

typedef struct FlashliftFuseOptions {
  size_t struct_size;
  int32_t as;       /* a FlashliftFuseAs */
  const char* name; /* of the module, for locations and messages; NULL is "<module>" */
  /* Not 0: if the module also contains the gradient of an attention, both are fused and become custom calls, the
   * gradient flashlift.attention_backward. Otherwise, and as a composite, both stay unfused. */
  int32_t gradients;
  /* The form of the returned module: "text", "bytecode" (MLIR bytecode of StableHLO), "vhlo=1.9.0" (a portable artifact
   * of that version of StableHLO), "vhlo" (of the oldest version that can represent it); NULL or "": the form of the
   * input. */
  const char* emit;
  /* The number of partitions that the module is compiled for, if the module itself does not give it
   * (mhlo.num_partitions); 0 means unknown. With several partitions, an attention is fused inside manual computations
   * (shard_map), and if Shardy's annotations split its batches or heads. */
  int64_t partitions;
  /* Not 0: if nothing is fused, the returned module is empty, for callers that still have the input. */
  int32_t skip_unchanged;
} FlashliftFuseOptions;

typedef struct FlashliftFused FlashliftFused;

/* Finds attention in a module of `size` bytes and replaces it: StableHLO text, pretty or generic, MLIR bytecode, or
 * VHLO (a portable artifact); the first bytes determine which. `options` may be NULL. An attention that cannot be
 * proved is not an error: it stays unfused, with a reason in the report. Errors: INVALID_ARGUMENT with line and column,
 * or the byte, for an invalid module; UNSUPPORTED for a module that cannot be read, or cannot be written in the
 * requested form. */
FlashliftError* flashlift_stablehlo_fuse(const char* module, size_t size, const FlashliftFuseOptions* options,
                                         FlashliftFused** fused);
/* Takes NULL too. */
void flashlift_fused_destroy(FlashliftFused* fused);

/* The module. If nothing was fused and no other form was requested: the input, byte for byte, or empty with
 * skip_unchanged. Ends with a zero byte that `size`, which may be NULL, does not count. Lives as long as `fused`, as
 * does the report. */
const char* flashlift_fused_module(const FlashliftFused* fused, size_t* size);
/* How many attentions were replaced. */
size_t flashlift_fused_count(const FlashliftFused* fused);
/* A JSON array with one object for each place that looked like attention: location, function, fused, reason, and if
 * fused also problem, score_mod and mask_mod. */
const char* flashlift_fused_report(const FlashliftFused* fused);

#ifdef __cplusplus
}
#pragma GCC visibility pop
#endif

#endif
