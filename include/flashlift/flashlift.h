/* Flashlift's C interface: attention problems compiled from text, run on DLPack tensors.
 *
 *   FlashliftAttention* attention = NULL;
 *   FlashliftError* error = flashlift_attention_compile("attn b1 h8 s1024 d64 f32 causal", NULL, &attention);
 *   if (error == NULL) error = flashlift_attention_run(attention, &arguments, NULL);
 *   if (error != NULL) puts(flashlift_error_message(error));
 *   flashlift_error_destroy(error);
 *   flashlift_attention_destroy(attention);
 *
 * A NULL handle is an error, or the empty answer ("", 0, -1 bytes) of a function that only tells something.
 *
 * Every function is safe to call from any thread; one compiled attention may run on many threads at once. A function
 * that can fail returns NULL for success, or an error that the caller destroys. Structures begin with their size, so
 * that a library may learn new fields without breaking older callers; set it and leave what is not needed at zero:
 *
 *   FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments), .q = &q, .k = &k, .v = &v, .out = &out};
 *
 * Library: flashlift. Fusing modules has a header and a library of its own: flashlift_stablehlo.h.
 */
#ifndef FLASHLIFT_FLASHLIFT_H_
#define FLASHLIFT_FLASHLIFT_H_

#include <dlpack/dlpack.h> /* Debian: libdlpack-dev */
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
#pragma GCC visibility push(default) /* this is what the shared library exports */
extern "C" {
#endif

/* Grows when functions or fields are added; nothing is taken away without a new soname. */
#define FLASHLIFT_API_VERSION 9

/* The FLASHLIFT_API_VERSION that the library was built with. */
int32_t flashlift_api_version(void);
/* The release, such as "0.1.0". Static. */
const char* flashlift_version(void);
/* The operations that score programs are made of, as a JSON array of objects: name, operands (-1: any number), kind,
 * computes, stablehlo (the operation that it is, or ""), aten (names of torch functions that it is, separated by
 * spaces). The text lives as long as the process. */
const char* flashlift_operations(void);
/* The words of a problem's text, as a JSON array of objects: name, group (sizes, masks, scores, options or programs),
 * forms, examples, meaning, without, captures (what the tensors are that a call must bring). The text lives as long as
 * the process. */
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

/* What was expected, what came, what to do. UTF-8; lives as long as the error. */
const char* flashlift_error_message(const FlashliftError* error);
FlashliftErrorCode flashlift_error_code(const FlashliftError* error);
/* Takes NULL too. */
void flashlift_error_destroy(FlashliftError* error);

/* ---- Problems ---- */

/* What a problem's text says, word by word. Immutable. */
typedef struct FlashliftProblem FlashliftProblem;

/* Reads a text. It may leave sizes out: what is missing, and what does not go together, compiling finds. Errors:
 * INVALID_ARGUMENT for a word that is unknown, is given twice or has another value than it takes, or a malformed
 * program. */
FlashliftError* flashlift_problem_read(const char* text, FlashliftProblem** problem);
/* The same of a text with all its sizes, each named feature replaced by the program it becomes. Since version 7. */
FlashliftError* flashlift_problem_expand(const char* text, FlashliftProblem** problem);
/* Takes NULL too. */
void flashlift_problem_destroy(FlashliftProblem* problem);
/* A JSON object: sizes (of b, hq and so on), dtype or null, words (true, a number, two numbers or a text), score_mod
 * and mask_mod (a program's text or null). Lives as long as the problem. */
const char* flashlift_problem_json(const FlashliftProblem* problem);

/* ---- Compiling ---- */

/* What is done with the database of what was tuned; see flashlift_tune. */
typedef enum FlashliftTuningPolicy {
  FLASHLIFT_TUNING_FROM_ENVIRONMENT = 0, /* FLASHLIFT_TUNING: off, read or write; without it write */
  FLASHLIFT_TUNING_OFF = 1,              /* compiling takes nothing from it, tuning puts nothing there */
  FLASHLIFT_TUNING_READ = 2,  /* compiling takes from it; tuning gives what it finds there, otherwise only measures */
  FLASHLIFT_TUNING_WRITE = 3, /* compiling takes from it; tuning measures and puts the result there */
} FlashliftTuningPolicy;

/* An attention compiled for one class of problems and one device. Immutable. */
typedef struct FlashliftAttention FlashliftAttention;

typedef struct FlashliftCompileOptions {
  size_t struct_size;
  DLDevice device;            /* kDLCPU or kDLCUDA */
  const char* implementation; /* NULL: the first that accepts the problem; a name: that one, or the reason why not */
  /* since version 5 */
  int32_t lengths_unknown; /* 1: batch, sq and skv of the problem are placeholders. A GPU's kernels are then compiled
                              by the first calls, for lengths like theirs */
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
  /* Compute capabilities times ten, such as 80, 86, 89, 90, 100, 120. A kernel runs on its own one only. */
  const int32_t* architectures;
  size_t architecture_count;
  const char* implementation; /* as FlashliftCompileOptions */
  const int64_t* q_lens;      /* for calls with so many queries; none: as many as the problem has */
  size_t q_len_count;
  int32_t backward;             /* 1: the backward pass too */
  const char* const* gradients; /* names of the captured tensors that it gives gradients of */
  size_t gradient_count;
} FlashliftPrecompileOptions;

/* What was compiled. Immutable. */
typedef struct FlashliftPrecompiled FlashliftPrecompiled;

/* Compiles a GPU's kernels into the cache on disk, without a GPU: calls then find them where they have the cache's
 * folder (FLASHLIFT_CACHE_DIR) and the same versions of Flashlift and NVRTC. `result` may be NULL. Errors: as
 * flashlift_attention_compile; INVALID_ARGUMENT for an architecture that NVRTC does not know; NOT_FOUND without NVRTC;
 * a folder that cannot be used. Since version 7. */
FlashliftError* flashlift_precompile(const char* problem, const FlashliftPrecompileOptions* options,
                                     FlashliftPrecompiled** result);
/* Takes NULL too. */
void flashlift_precompiled_destroy(FlashliftPrecompiled* precompiled);
/* A JSON list with an object for each kernel: architecture, implementation, kernel, cached (whether the cache had it)
 * and seconds. Lives as long as `precompiled`. */
const char* flashlift_precompiled_json(const FlashliftPrecompiled* precompiled);

typedef struct FlashliftTuneOptions {
  size_t struct_size;
  DLDevice device;
  int32_t backward;      /* 1: the backward pass, which is tuned by itself */
  int32_t heads_inside;  /* 1: tensors lie in memory as [batch, length, heads, depth] */
  double seconds;        /* how long to measure, about; 0 is 2 */
  int32_t tuning_policy; /* a FlashliftTuningPolicy */
  /* NULL, or called between measurements with the part that is done, from 0 to 1, and how many candidates are left.
   * Other than 0 ends the measuring: CANCELLED. */
  int32_t (*on_progress)(void* context, double done, int32_t left);
  void* context;
} FlashliftTuneOptions;

/* What was measured. Immutable. */
typedef struct FlashliftTuned FlashliftTuned;

/* Measures the candidates for a problem on this machine, and puts the fastest into a database (SQLite, in
 * FLASHLIFT_CACHE_DIR) that processes share. Compiling the same problem for the same lengths takes it from there, where
 * no implementation is named. Nothing else measures. `options` and `result` may be NULL. Errors: as
 * flashlift_attention_compile; NOT_FOUND without SQLite, or where the folder cannot be used. Since version 8. */
FlashliftError* flashlift_tune(const char* problem, const FlashliftTuneOptions* options, FlashliftTuned** result);
/* Takes NULL too. */
void flashlift_tuned_destroy(FlashliftTuned* tuned);
/* A JSON object: problem, device, direction, best (implementation or null, q_tile, kv_tile, splits, threads; 0 is the
 * library's own), ms, heuristics_ms, from_database, stored, and candidates, the fastest first, each like best with ms
 * (null where it failed), calls and failure. Lives as long as `tuned`. */
const char* flashlift_tuned_json(const FlashliftTuned* tuned);

/* The problem in canonical text, every named feature as the program it became. Lives as long as the attention. */
const char* flashlift_attention_problem(const FlashliftAttention* attention);

typedef struct FlashliftProblemInfo {
  size_t struct_size;
  int64_t batch, q_heads, kv_heads, q_len, kv_len, head_dim, value_dim;
  DLDataType dtype;      /* of q, k and v */
  DLDataType out_dtype;  /* of out */
  int64_t sinks;         /* per query head; 0 is none */
  int32_t want_lse;      /* 1 if a call must bring lse */
  int32_t capture_count; /* how many captured tensors a call must bring */
  /* since version 2 */
  int64_t page_size;    /* keys of a page; 0: k and v are not paged */
  float dropout;        /* the probability that a key is left out */
  int32_t want_row_max; /* 1 if a call must bring row_max */
  /* since version 6 */
  int32_t want_residual; /* 1 if a call must bring residual */
  int32_t keep_mask;     /* 1 if a call must bring keep_mask */
  /* since version 9 */
  int32_t dropout_words; /* 1 if a call must bring dropout_words */
} FlashliftProblemInfo;

/* Fills in what `info->struct_size` has room for. Errors: INVALID_ARGUMENT for a size that was not set. */
FlashliftError* flashlift_attention_info(const FlashliftAttention* attention, FlashliftProblemInfo* info);
/* The name of captured tensor `index`, or NULL if there is none. Lives as long as the attention. */
const char* flashlift_attention_capture_name(const FlashliftAttention* attention, int32_t index);
/* The chosen implementation's name. Lives as long as the attention. */
const char* flashlift_attention_implementation(const FlashliftAttention* attention);
/* One line for each implementation that was asked: "name: accepted|rejected: reason". Lives as long as the attention.
 */
const char* flashlift_attention_considerations(const FlashliftAttention* attention);
/* The same of the backward pass; none is accepted where flashlift_attention_run_backward will fail. Since version 5. */
const char* flashlift_attention_backward_considerations(const FlashliftAttention* attention);
/* Bytes of temporary memory that a call uses besides its inputs and outputs, with that many threads (1 or more; -1
 * for fewer). */
int64_t flashlift_attention_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency);
/* The same of a backward call that asks for d_q, d_k and d_v. Since version 2. */
int64_t flashlift_attention_backward_workspace_bytes(const FlashliftAttention* attention, int32_t concurrency);

/* ---- Running ---- */

/* Which blocks of the score plane a problem's mask keeps: writes 0 for a block of which nothing is kept, 2 for one of
 * which everything is, and 1 for one that is kept in part, or of which nothing could be proved. Found by intervals,
 * without anything of size q_len x kv_len. `captures`: the problem's captured tensors, on the CPU, in the order of
 * flashlift_attention_capture_name. `kinds`: u8 [batch or 1, q_heads or 1, blocks of queries, blocks of keys], dense;
 * where it has 1, what is said holds for all of the problem's batches or heads. Since version 4.
 */
FlashliftError* flashlift_block_kinds(const char* problem, const DLTensor* const* captures, size_t capture_count,
                                      int64_t q_block, int64_t kv_block, const DLTensor* kinds);

/* The tensors of one call, whatever their strides (elements; NULL is dense row-major). They must lie on the device that
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
  const DLTensor* lse;   /* f32 [batch, q_heads, q_len], or NULL if the problem does not ask for it */
  /* since version 2 */
  const DLTensor* row_max;    /* like lse */
  const DLTensor* page_table; /* i32 [batch, pages of a sequence], for a problem with pages: then k and v are
                                 [pages, kv_heads, page_size, dim] */
  uint64_t dropout_seed;      /* which keys dropout leaves out */
  /* since version 6 */
  const DLTensor* residual;  /* what rounding took from out, in its dtype, shape and strides: written by a forward call
                                and read by the backward one; NULL if the problem does not ask for it */
  const DLTensor* keep_mask; /* bool [batch, q_heads, q_len, kv_len], each size that or 1: the keys that stay, for a
                                problem with a keep_mask */
  /* since version 9 */
  const DLTensor* dropout_words; /* u32 [2], dropout's seed, its low half first, or [4], with the batch and the query
                                    head that count as the first ones behind it: in place of dropout_seed, for a problem
                                    with dropout_words */
} FlashliftArguments;

/* Where a call's parallel work runs: a thread pool that the caller lends. */
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
  /* NULL, or a number that any thread may set to other than 0, by an atomic store, to end the call early, and leaves so
   * until the call has returned: CANCELLED, with anything in the outputs. Read before a GPU's launch, and on a CPU
   * before each task, which is about a thousand queries of a head. */
  const int32_t* cancelled;
  /* since version 9 */
  /* CUDA, the backward pass: where its temporary memory comes from; NULL is the driver's own pool. Returns at least
   * `bytes` bytes of the attention's device, aligned to 256, or NULL where there are none: a framework's caching
   * allocator, say. They must stay valid until what the call puts on its stream is done. Called at most once a call,
   * and not while the stream is being captured. */
  void* (*allocate)(void* allocate_context, size_t bytes);
  void* allocate_context;
} FlashliftRunOptions;

/* Runs. Errors: INVALID_ARGUMENT for a shape, dtype, stride or device that the problem does not allow; nothing is
 * written then. `options` may be NULL. */
FlashliftError* flashlift_attention_run(const FlashliftAttention* attention, const FlashliftArguments* arguments,
                                        const FlashliftRunOptions* options);

/* ---- The backward pass ---- */

/* The gradients of a loss by what a forward call read, from those by what it wrote. Each gradient is written, not added
 * to; it has the shape of its tensor, any strides, and overlaps nothing else. NULL where it is not wanted. */
typedef struct FlashliftBackwardArguments {
  size_t struct_size;
  /* The forward call's, as it left them: out and lse are read now. A problem that asks for lse has the faster backward.
   */
  const FlashliftArguments* forward;
  const DLTensor* d_out; /* of out's shape and element type, or of q's if the problem has d_out=inputs */
  const DLTensor* d_lse; /* f32, of lse's shape, or NULL for zeros; only if the problem asks for lse */
  const DLTensor* d_q;   /* of the problem's element type, as d_k and d_v */
  const DLTensor* d_k;
  const DLTensor* d_v;
  /* NULL, or forward->capture_count pointers, each of which may be NULL: f32 or the captured tensor's own float type.
   */
  const DLTensor* const* d_captures;
  const DLTensor* d_sinks; /* f32, of the sinks' shape */
} FlashliftBackwardArguments;

/* Generates the code that flashlift_attention_run_backward needs, which its first call does otherwise. It may run on a
 * thread of its own beside the first forward call: a backward call waits for it. `wanted`: for each captured tensor, in
 * the order of flashlift_attention_capture_name, whether calls will ask for its gradient; `wanted_count` is
 * FlashliftProblemInfo::capture_count, or 0 for none. Errors: INVALID_ARGUMENT for another count; UNSUPPORTED where no
 * implementation has a backward pass for the problem. Since version 9. */
FlashliftError* flashlift_attention_prepare_backward(const FlashliftAttention* attention, const int32_t* wanted,
                                                     size_t wanted_count);

/* Writes 1 into `reads` if backward calls take less time where the problem asks for `residual`, and 0 if they do not:
 * whoever runs forward for a gradient asks this first, of the problem without the word, and where it is 1 compiles the
 * problem with it. `wanted` and `wanted_count`: as flashlift_attention_prepare_backward. Errors: INVALID_ARGUMENT for
 * another count. Since version 9. */
FlashliftError* flashlift_attention_reads_residual(const FlashliftAttention* attention, const int32_t* wanted,
                                                   size_t wanted_count, int32_t* reads);

/* Writes the gradients that the arguments ask for. Code for them is generated by the first such call, so that whoever
 * only runs forward pays nothing. Errors: INVALID_ARGUMENT as flashlift_attention_run; UNSUPPORTED for an output that
 * is not normalised, and for pages. `options` may be NULL. Since version 2.
 */
FlashliftError* flashlift_attention_run_backward(const FlashliftAttention* attention,
                                                 const FlashliftBackwardArguments* arguments,
                                                 const FlashliftRunOptions* options);

/* ---- Judging a result ---- */

/* One tensor of a result, and what it is held against: for tests and benchmarks of attention, Flashlift's or another's.
 * All lie in the CPU's memory and have one shape. */
typedef struct FlashliftSubject {
  size_t struct_size;
  const char* name;           /* for the reason; NULL is "out" */
  const DLTensor* got;        /* f64, f32, bf16 or f16 */
  const DLTensor* want;       /* f64: the same, computed in double precision */
  const DLTensor* eager;      /* f32: the same, computed unfused in the problem's own element type */
  const DLTensor* magnitudes; /* f64: what the terms of each element sum to without their signs; NULL: want's */
  int64_t row_width;          /* elements of a row, which share their errors; 0 is 1 */
  double samples;             /* how many errors are independent of each other; 0: as many as there are rows */
  int32_t is_gradient;        /* other than 0: NaN and infinities may stand for each other, and where eager has them */
} FlashliftSubject;

/* An error, the same of `eager`, and what the error may be. */
typedef struct FlashliftMeasure {
  double error, eager, limit;
} FlashliftMeasure;

typedef struct FlashliftJudgement {
  size_t struct_size;
  FlashliftMeasure mean;    /* of all elements */
  FlashliftMeasure largest; /* of all elements */
  FlashliftMeasure row;     /* the mean of a row: the row that is nearest to its limit, or the furthest beyond */
  int32_t ok;
  char reason[256]; /* why it is not ok, with the place; empty if it is */
} FlashliftJudgement;

/* Whether a result is right, by the rules of docs/design.md. Errors: INVALID_ARGUMENT for a shape or an element type.
 * Since version 4. */
FlashliftError* flashlift_judge(const FlashliftSubject* subject, FlashliftJudgement* judgement);

#ifdef __cplusplus
}
#pragma GCC visibility pop
#endif

#endif
