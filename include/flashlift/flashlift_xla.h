/* Flashlift's custom calls in a program that runs XLA through a PJRT plugin, in any language. Library: flashlift_xla.
 *
 *   const struct PJRT_Api* api = GetPjrtApi();  // of the plugin
 *   const char* error = flashlift_xla_register(api);
 *   if (error != NULL) fail(error);
 *
 * After that the plugin compiles and runs modules that hold the custom calls flashlift.attention and
 * flashlift.attention_backward, as `flashlift fuse` and flashlift_stablehlo_fuse() write them. The plugin
 * libflashlift_pjrt does both: it fuses, and registers the handlers; see docs/xla.md.
 */
#ifndef FLASHLIFT_FLASHLIFT_XLA_H_
#define FLASHLIFT_FLASHLIFT_XLA_H_

#ifdef __cplusplus
#pragma GCC visibility push(default)
extern "C" {
#endif

struct PJRT_Api;

/* Registers the handlers of all of Flashlift's custom calls, for CPUs and for NVIDIA GPUs, with the plugin that `api`
 * comes from. Call it before the first module is compiled or loaded; a second call does nothing. Thread-safe.
 * Returns NULL for success, or the reason for the failure: a text that lives until the thread's next call. */
const char* flashlift_xla_register(const struct PJRT_Api* api);

#ifdef __cplusplus
}
#pragma GCC visibility pop
#endif

#endif
