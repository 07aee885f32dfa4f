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
  FLASHLIFT_CUSTOM_CALL = 0, /* custom_call @flashlift.attention: runs where Flashlift's handler is registered */
  FLASHLIFT_COMPOSITE = 1    /* composite "flashlift.attention" with the original as decomposition: runs anywhere */
} FlashliftFuseAs;

typedef struct FlashliftFuseOptions {
  size_t struct_size;
  int32_t as;       /* a FlashliftFuseAs */
  const char* name; /* of the module, for locations and messages; NULL is "<module>" */
  /* Not 0: an attention whose gradient stands in the module, too, is fused with it. Both become custom calls, the
   * backward pass flashlift.attention_backward. Otherwise, and as a composite, both stay. */
  int32_t gradients;
  /* The form of the module that comes back: "text", "bytecode" (MLIR bytecode of StableHLO), "vhlo=1.9.0" (a portable
   * artifact of that version of StableHLO), "vhlo" (of the oldest version that can say it); NULL or "": the form it was
   * given in. */
  const char* emit;
  /* How many partitions the module is compiled for, where it does not say so itself (mhlo.num_partitions); 0 says
   * nothing. In one that is compiled for several, an attention is fused within manual computations (shard_map), and
   * where Shardy's annotations say that its batches or heads are split. */
  int64_t partitions;
  /* Not 0: a module in which nothing is fused comes back empty, for callers that have it still. */
  int32_t skip_unchanged;
} FlashliftFuseOptions;

typedef struct FlashliftFused FlashliftFused;

/* Finds attention in a module of `size` bytes and replaces it: StableHLO text, pretty or generic, MLIR bytecode, or
 * VHLO (a portable artifact); the first bytes tell which. `options` may be NULL. An attention that cannot be proved is
 * no error: it stays, with a reason in the report. Errors: INVALID_ARGUMENT with line and column, or the byte, for what
 * is not a valid module; UNSUPPORTED for what cannot be read, or not be written in the form asked for. */
FlashliftError* flashlift_stablehlo_fuse(const char* module, size_t size, const FlashliftFuseOptions* options,
                                         FlashliftFused** fused);
/* Takes NULL too. */
void flashlift_fused_destroy(FlashliftFused* fused);

/* The module; the input, byte for byte, when nothing was fused and no other form was asked for, or empty with
 * skip_unchanged. Ends with a zero byte that `size`, which may be NULL, does not count. Lives as long as `fused`, as
 * does the report. */
const char* flashlift_fused_module(const FlashliftFused* fused, size_t* size);
/* How many attentions were replaced. */
size_t flashlift_fused_count(const FlashliftFused* fused);
/* A JSON array with one object for each place that looked like attention: location, function, fused, reason, and for a
 * fused one problem, score_mod and mask_mod. */
const char* flashlift_fused_report(const FlashliftFused* fused);

#ifdef __cplusplus
}
#pragma GCC visibility pop
#endif

#endif
