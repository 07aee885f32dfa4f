/* Flashlift's C interface: attention problems compiled from text, run on DLPack tensors.
 *
 *   FlashliftAttention* attention = NULL;
 *   FlashliftError* error = flashlift_attention_compile("attn b1 h8 s1024 d64 f32 causal", NULL, &attention);
 *   if (error == NULL) error = flashlift_attention_run(attention, &arguments, NULL);
 *   if (error != NULL) puts(flashlift_error_message(error));
 *   flashlift_error_destroy(error);
 *   flashlift_attention_destroy(attention);
 *
 * For a NULL handle, a function returns an error; a function that only queries something returns an empty answer ("",
 * 0, -1 bytes).
 *
 * Every function is safe to call from any thread; one compiled attention may run on many threads at once. A function
 * that can fail returns NULL for success, or an error that the caller destroys. Structures begin with their size, so
 * that later versions can add fields without breaking older callers. Set it, and leave all fields that you do not need
 * at zero:
 *
 *   FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments), .q = &q, .k = &k, .v = &v, .out = &out};
 *
 * Library: flashlift. The functions that fuse modules have their own header and library: flashlift_stablehlo.h.
 */
#ifndef FLASHLIFT_FLASHLIFT_H_
#define FLASHLIFT_FLASHLIFT_H_

#include <dlpack/dlpack.h> /* Debian: libdlpack-dev */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC visibility push(default) /* the shared library exports these declarations */
extern "C" {
#endif

/* Grows when functions or fields are added; nothing is removed without a new soname. */
#define FLASHLIFT_API_VERSION 10

/* The FLASHLIFT_API_VERSION that the library was built with. */
int32_t flashlift_api_version(void);
/* The release, such as "0.1.0". Static. */
const char* flashlift_version(void);
/* The operations of score programs, as a JSON array of objects: name, operands (-1: any number), kind, types (such as
 * "T, T -> T; T: i32, i64"), computes, stablehlo (the equivalent operation, or ""), aten (the equivalent torch
 * functions, separated by spaces). The text lives as long as the process. */
const char* flashlift_operations(void);
/* The words of a problem's text, as a JSON array of objects: name, group (sizes, masks, scores, options or programs),
 * forms, examples, meaning, without, captures (the tensors that a call must pass). The text lives as long as the
 * process. */
const char* flashlift_problem_words(void);

/* ---- Errors ---- */

typedef enum FlashliftErrorCode {
  FLASHLIFT_INVALID_ARGUMENT = 1, /* the caller's input is wrong: a shape, a dtype, a malformed text */
  FLASHLIFT_UNSUPPORTED = 2,      /* the input is right, but no implementation can do it */
  FLASHLIFT_NOT_FOUND = 3,        /* a file, a device or a library is missing */
  FLASHLIFT_INTERNAL = 4,         /* a defect of Flashlift, or memory ran out */
  FLASHLIFT_CANCELLED = 5         /* the caller ended the call: FlashliftRunOptions::cancelled */
} FlashliftErrorCode;

typedef struct FlashliftError FlashliftError;

/* Says what was expected, what came, and what to do. UTF-8; lives as long as the error. */
const char* flashlift_error_message(const FlashliftError* error);
FlashliftErrorCode flashlift_error_code(const FlashliftError* error);
/* Takes NULL too. */
void flashlift_error_destroy(FlashliftError* error);

/* ---- Problems ---- */

/* The meaning of a problem's text, word by word. Immutable. */
typedef struct FlashliftProblem FlashliftProblem;

/* Reads a text. The text may leave sizes out: only compiling reports missing sizes and conflicting words. Errors:
 * INVALID_ARGUMENT for a word that is unknown, is given twice or has a value that it does not accept, or for a
 * malformed program. */
FlashliftError* flashlift_problem_read(const char* text, FlashliftProblem** problem);
/* The same for a text with all sizes, with each named feature replaced by its program. Since version 7. */
FlashliftError* flashlift_problem_expand(const char* text, FlashliftProblem** problem);
/* Takes NULL too. */
void flashlift_problem_destroy(FlashliftProblem* problem);
/* A JSON object: sizes (of b, hq and so on), dtype or null, words (true, a number, two numbers or a text), score_mod
 * and mask_mod (a program's text or null). Lives as long as the problem. */
const char* flashlift_problem_json(const FlashliftProblem* problem);

/* ---- Compiling ---- */

/* How compiling and tuning use the database of tuning results; see flashlift_tune. */
typedef enum FlashliftTuningPolicy {
  FLASHLIFT_TUNING_FROM_ENVIRONMENT = 0, /* FLASHLIFT_TUNING: off, read or write; without it write */
  FLASHLIFT_TUNING_OFF = 1,              /* compiling does not read it, tuning does not write it */
  FLASHLIFT_TUNING_READ = 2, /* compiling reads it; tuning returns a stored result, or measures without writing */
  FLASHLIFT_TUNING_WRITE = 3 /* compiling reads it; tuning measures and writes the result */
} FlashliftTuningPolicy;

/* An attention compiled for one class of problems and one device. Immutable. */
typedef struct FlashliftAttention FlashliftAttention;

typedef struct FlashliftCompileOptions {
  size_t struct_size;
  DLDevice device;            /* kDLCPU, as if all is zero, or kDLCUDA */
  const char* implementation; /* NULL: the first that accepts the problem; a name: this one, or its reason */
  /* since version 5 */
  int32_t lengths_unknown; /* 1: batch, sq and skv of the problem are placeholders. The first calls then compile a GPU's
                              kernels, for the classes of their own lengths */
  /* since version 8 */
  int32_t tuning_policy; /* a FlashliftTuningPolicy */
} FlashliftCompileOptions;

/* Compiles a problem given as one line of text, programs included (docs/problem.md). `options` may be NULL: the CPU.
 * Errors: INVALID_ARGUMENT with the place in the text; UNSUPPORTED with each implementation's reason. */
FlashliftError* flashlift_attention_compile(const char* problem, const FlashliftCompileOptions* options,
                                            FlashliftAttention** attention);
/* Takes NULL too. Must not be called while the attention runs. */
void flashlift_attention_destroy(FlashliftAttention* attention);

typedef struct FlashliftPrecompileOptions {
  size_t struct_size;
  /* Compute capabilities times ten, such as 80, 86, 89, 90, 100, 120. A kernel runs only on the architecture that it
   * was compiled for. */
  const int32_t* architectures;
  size_t architecture_count;
  const char* implementation; /* as in FlashliftCompileOptions */
  const int64_t* q_lens;      /* numbers of queries of the calls; none: the problem's number */
  size_t q_len_count;
  int32_t backward;             /* 1: the backward pass too */
  const char* const* gradients; /* names of the captured tensors whose gradients it computes; a name implies backward */
  size_t gradient_count;
} FlashliftPrecompileOptions;

/* What was compiled. Immutable. */
typedef struct FlashliftPrecompiled FlashliftPrecompiled;

/* Compiles a GPU's kernels into the cache on disk; this needs no GPU. Calls find the kernels on a machine with the
 * cache's folder (FLASHLIFT_CACHE_DIR) and the same versions of Flashlift and NVRTC. `result` may be NULL. Errors: as
 * flashlift_attention_compile; INVALID_ARGUMENT for an architecture that NVRTC does not know; NOT_FOUND without NVRTC;
 * a folder that cannot be used. Since version 7. */
FlashliftError* flashlift_precompile(const char* problem, const FlashliftPrecompileOptions* options,
                                     FlashliftPrecompiled** result);
/* Takes NULL too. */
void flashlift_precompiled_destroy(FlashliftPrecompiled* precompiled);
/* A JSON array with one object per kernel: architecture, implementation, kernel, cached (whether it was already in the
 * cache) and seconds. Lives as long as `precompiled`. */
const char* flashlift_precompiled_json(const FlashliftPrecompiled* precompiled);

typedef struct FlashliftTuneOptions {
  size_t struct_size;
  DLDevice device;
  int32_t backward;      /* 1: the backward pass, which is tuned separately */
  int32_t heads_inside;  /* 1: tensors lie in memory as [batch, length, heads, depth] */
  double seconds;        /* about how long to measure; 0 means 2 */
  int32_t tuning_policy; /* a FlashliftTuningPolicy */
  /* NULL, or called between measurements with the fraction that is done, from 0 to 1, and the number of candidates
   * left. A return value other than 0 ends the measurement: CANCELLED. */
  int32_t (*on_progress)(void* context, double done, int32_t left);
  void* context;
} FlashliftTuneOptions;

/* What was measured. Immutable. */
typedef struct FlashliftTuned FlashliftTuned;

/* Measures the candidates for a problem on this machine, and writes the fastest into a database (SQLite, in
 * FLASHLIFT_CACHE_DIR) that processes share. Compiling the same problem for the same lengths then uses it, if no
 * implementation is named. No other function measures. `options` and `result` may be NULL. Errors: as
 * flashlift_attention_compile; NOT_FOUND without SQLite, or where the folder cannot be used. Since version 8. */
FlashliftError* flashlift_tune(const char* problem, const FlashliftTuneOptions* options, FlashliftTuned** result);
/* Takes NULL too. */
void flashlift_tuned_destroy(FlashliftTuned* tuned);
/* A JSON object: problem, device, direction, best (implementation or null, q_tile, kv_tile, splits, threads; 0 leaves
 * the choice to the library), ms, heuristics_ms, from_database, stored, and candidates, the fastest first, each like
 * best with ms (null where it failed), calls and failure. Lives as long as `tuned`. */
const char* flashlift_tuned_json(const FlashliftTuned* tuned);

/* The problem in canonical text, with every named feature as its program. Lives as long as the attention. */
const char* flashlift_attention_problem(const FlashliftAttention* attention);

typedef struct FlashliftProblemInfo {
  size_t struct_size;
  int64_t batch, q_heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  DLDataType dtype;      /* of q, k and v */
  DLDataType out_dtype;  /* of out */
  int64_t sinks;         /* per query head; 0 is none */
  int32_t want_lse;      /* 1 if a call must pass lse */
  int32_t capture_count; /* how many captured tensors a call must pass */
  /* since version 2 */
  int64_t page_size;    /* keys per page; 0: k and v are not paged */
  float dropout;        /* the probability that a key is dropped */
  int32_t want_row_max; /* 1 if a call must pass row_max */
  /* since version 6 */
  int32_t want_residual; /* 1 if a call must pass residual */
  int32_t keep_mask;     /* 1 if a call must pass keep_mask */
  /* since version 9 */
  int32_t dropout_words; /* 1 if a call must pass dropout_words */
} FlashliftProblemInfo;

/* Fills in the fields that fit into `info->struct_size`. Errors: INVALID_ARGUMENT for a size that was not set. */
FlashliftError* flashlift_attention_info(const FlashliftAttention* attention, FlashliftProblemInfo* info);
/* The name of captured tensor `index`, or NULL if there is none. Lives as long as the attention. */
const char* flashlift_attention_capture_name(const FlashliftAttention* attention, int32_t index);
/* The chosen implementation's name. Lives as long as the attention. */
const char* flashlift_attention_implementation(const FlashliftAttention* attention);
/* One line for each implementation that was considered: "name: accepted|rejected: reason". Lives as long as the
 * attention.
 */
const char* flashlift_attention_considerations(const FlashliftAttention* attention);
/* The same for the backward pass; none is accepted if flashlift_attention_run_backward will fail. Since version 5. */
const char* flashlift_attention_backward_considerations(const FlashliftAttention* attention);
/* Bytes of temporary memory that a call uses with `concurrency` threads, without its inputs and outputs; -1 if
 * `concurrency` is below 1. */
int64_t flashlift_attention_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency);
/* The same for a backward call that requests d_q, d_k and d_v. Since version 2. */
int64_t flashlift_attention_backward_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency);

/* ---- Running ---- */

/* Classifies the blocks of the score matrix by a problem's mask: writes 0 for a block of which nothing is kept, 2 for a
 * block of which everything is kept, and 1 for a block that is kept in part or cannot be proved to be either. Interval
 * analysis computes this, without anything of size q_len x kv_len. `captures`: the problem's captured tensors, on the
 * CPU, in the order of flashlift_attention_capture_name. `kinds`: u8 [batch or 1, q_heads or 1, blocks of queries,
 * blocks of keys], dense; a size of 1 makes one statement about all of the problem's batches or heads. Errors:
 * INVALID_ARGUMENT for captured tensors that do not match the problem, blocks without queries or keys, and `kinds` of
 * another shape or with other strides. Since version 4.
 */
FlashliftError* flashlift_block_kinds(const char* problem, const DLTensor* const* captures, size_t capture_count,
                                      int64_t q_block, int64_t kv_block, const DLTensor* kinds);

/* The tensors of one call, with any strides (in elements; NULL means dense row-major). They must be on the device that
 * the attention was compiled for. batch, q_len and kv_len may differ from the compiled problem's. */
typedef struct FlashliftArguments {
  size_t struct_size;
  const DLTensor* q;               /* [batch, q_heads, q_len, head_dim] */
  const DLTensor* k;               /* [batch, kv_heads, kv_len, head_dim] */
  const DLTensor* v;               /* [batch, kv_heads, kv_len, value_dim] */
  const DLTensor* out;             /* [batch, q_heads, q_len, value_dim]. No output may share memory with
                                      an input or another output. */
  const DLTensor* const* captures; /* in the order of flashlift_attention_capture_name */
  size_t capture_count;
  const DLTensor* sinks; /* f32 [q_heads, sinks], or [sinks] for all heads; NULL if the problem has none */
  const DLTensor* lse;   /* f32 [batch, q_heads, q_len], or NULL if the problem does not have it */
  /* since version 2 */
  const DLTensor* row_max;    /* like lse */
  const DLTensor* page_table; /* i32 [batch, pages of a sequence], for a problem with pages: then k and v are
                                 [pages, kv_heads, page_size, dim] */
  uint64_t dropout_seed;      /* determines the keys that dropout drops */
  /* since version 6 */
  const DLTensor* residual;  /* the rounding error of out, int8 (before version 10: out's dtype) of out's shape and
                                strides: the forward call writes it, the backward call reads it; NULL if the problem
                                does not have it */
  const DLTensor* keep_mask; /* bool [batch, q_heads, q_len, kv_len], each size may be 1 instead: the kept keys, for a
                                problem with a keep_mask */
  /* since version 9 */
  /* u32 [2], dropout's seed, low half first, or [4], followed by the numbers of the first batch and the first query
   * head: replaces dropout_seed, for a problem with dropout_words */
  const DLTensor* dropout_words;
} FlashliftArguments;

/* The caller's thread pool, which runs the parallel work of a call. */
typedef struct FlashliftExecutor {
  size_t struct_size;
  void* context;
  int32_t concurrency; /* how many bodies may run at the same time */
  /* Calls body(body_context, 0) ... body(body_context, count - 1) on any threads; returns when all have returned. */
  void (*parallel_for)(void* context, int64_t count, void (*body)(void* body_context, int64_t index),
                       void* body_context);
} FlashliftExecutor;

typedef struct FlashliftRunOptions {
  size_t struct_size;
  const FlashliftExecutor* executor; /* CPU: NULL is Flashlift's own pool */
  void* stream;                      /* CUDA: the CUstream to run on */
  /* NULL, or a number that any thread may set to a value other than 0, by an atomic store, to end the call early. It
   * must not be reset before the call returns CANCELLED; the contents of the outputs are then undefined. A call reads
   * it before a GPU launch, and on a CPU before each task of about a thousand queries of a head. */
  const int32_t* cancelled;
  /* since version 9 */
  /* CUDA: allocates the temporary memory of a backward call, from a framework's caching allocator for example; NULL
   * means the driver's own pool. Returns at least `bytes` bytes on the attention's device, aligned to 256, or NULL if
   * there is no memory. The memory must stay valid until the work that the call puts on its stream is done. Called at
   * most once per call, and not while the stream is being captured. */
  void* (*allocate)(void* allocate_context, size_t bytes);
  void* allocate_context;
} FlashliftRunOptions;

/* Runs the attention. Errors: INVALID_ARGUMENT for a shape, dtype, stride or device that the problem does not allow;
 * then nothing is written. On a CPU also for cu_seqlens_q, cu_seqlens_kv and key_lengths that no sequences of the call
 * have, and for an entry of page_table that is no page, if its keys are not masked. On a GPU these contents are not
 * checked: pages are clamped to those that exist. `options` may be NULL. */
FlashliftError* flashlift_attention_run(const FlashliftAttention* attention, const FlashliftArguments* arguments,
                                        const FlashliftRunOptions* options);

/* ---- The backward pass ---- */

/* The gradients of a loss with respect to the inputs of a forward call, from those with respect to its outputs. A call
 * overwrites each gradient and does not add to it. A gradient has the shape of its tensor and any strides, and overlaps
 * nothing else. NULL if you do not want it. */
typedef struct FlashliftBackwardArguments {
  size_t struct_size;
  /* The forward call's arguments with the outputs that it wrote: out and lse are inputs here. The backward pass is
   * faster if the problem has lse.
   */
  const FlashliftArguments* forward;
  const DLTensor* d_out; /* of out's shape and element type, or of q's if the problem has d_out=inputs */
  const DLTensor* d_lse; /* f32, of lse's shape, or NULL for zeros; only if the problem has lse */
  const DLTensor* d_q;   /* of the problem's element type, like d_k and d_v */
  const DLTensor* d_k;
  const DLTensor* d_v;
  /* NULL, or forward->capture_count pointers, each of which may be NULL: f32 or the captured tensor's own float type.
   */
  const DLTensor* const* d_captures;
  const DLTensor* d_sinks; /* f32, of the sinks' shape */
} FlashliftBackwardArguments;

/* Generates the code that flashlift_attention_run_backward needs; otherwise the first backward call does so. You may
 * run it on its own thread during the first forward call; a backward call waits for it. `wanted`: for each captured
 * tensor, in the order of flashlift_attention_capture_name, whether calls will request its gradient; `wanted_count` is
 * FlashliftProblemInfo::capture_count, or 0 for none. Errors: INVALID_ARGUMENT for another count; UNSUPPORTED if no
 * implementation has a backward pass for the problem. Since version 9. */
FlashliftError* flashlift_attention_prepare_backward(const FlashliftAttention* attention, const int32_t* wanted,
                                                     size_t wanted_count);

/* Writes 1 into `reads` if `residual` makes backward calls of this problem faster, and 0 if it does not. To compute
 * gradients, call this first on the problem without the word; if it writes 1, compile the problem with it. `wanted` and
 * `wanted_count`: as in flashlift_attention_prepare_backward. Errors: INVALID_ARGUMENT for another count. Since version
 * 9.
 * */
FlashliftError* flashlift_attention_reads_residual(const FlashliftAttention* attention, const int32_t* wanted,
                                                   size_t wanted_count, int32_t* reads);

/* Writes the gradients that the arguments request. The first such call generates the code for them, so that
 * forward-only use costs nothing. Errors: INVALID_ARGUMENT as flashlift_attention_run; UNSUPPORTED for an output that
 * is not normalised, and for pages. `options` may be NULL. Since version 2.
 */
FlashliftError* flashlift_attention_run_backward(const FlashliftAttention* attention,
                                                 const FlashliftBackwardArguments* arguments,
                                                 const FlashliftRunOptions* options);

/* ---- Judging a result ---- */

/* One tensor of a result, and the tensors to compare it with: for tests and benchmarks of any attention. All are in CPU
 * memory and have the same shape. */
typedef struct FlashliftSubject {
  size_t struct_size;
  const char* name;           /* for the reason; NULL is "out" */
  const DLTensor* got;        /* f64, f32, bf16 or f16 */
  const DLTensor* want;       /* f64: the same, computed in double precision */
  const DLTensor* eager;      /* f32: the same, computed unfused in the problem's own element type */
  const DLTensor* magnitudes; /* f64: the sum of the absolute values of each element's terms; NULL: that of want */
  int64_t row_width;          /* elements per row, which share their errors; 0 means 1 */
  double samples;             /* the number of independent errors; 0: the number of rows */
  int32_t is_gradient;        /* not 0: NaN and infinities may replace each other, and may occur where eager has them */
} FlashliftSubject;

/* An error, the same error of `eager`, and the limit. */
typedef struct FlashliftMeasure {
  double error, eager, limit;
} FlashliftMeasure;

typedef struct FlashliftJudgement {
  size_t struct_size;
  FlashliftMeasure mean;    /* of all elements */
  FlashliftMeasure largest; /* of all elements */
  FlashliftMeasure row;     /* the mean of a row: of the row that is nearest to its limit, or furthest beyond it */
  int32_t ok;
  char reason[256]; /* if not ok: the reason and the place; otherwise empty */
} FlashliftJudgement;

/* Judges whether a result is right, by the rules of docs/design.md. Errors: INVALID_ARGUMENT for a shape or an element
 * type. Since version 4. */
FlashliftError* flashlift_judge(const FlashliftSubject* subject, FlashliftJudgement* judgement);

#ifdef __cplusplus
}
#pragma GCC visibility pop
#endif

#endif
