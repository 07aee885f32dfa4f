/* Attention from C: sliding-window attention over packed documents, on plain arrays. */
#include <stdio.h>
#include <stdlib.h>

#include "flashlift/flashlift.h"

enum { kHeads = 8, kLength = 1024, kDepth = 64, kSize = kHeads * kLength * kDepth };

/* A key is seen if it belongs to the query's document and is at most 256 tokens back. */
static const char* const kProblem =
    "attn h8 s1024 d64 f32 "
    "mask_mod(document: i32[1024]) {"
    "  %0 = load document[q]; %1 = load document[kv]; %2 = eq %0, %1;"
    "  %3 = sub q, kv; %4 = ge %3, 0; %5 = le %3, 256;"
    "  %6 = and %2, %4; %7 = and %6, %5;"
    "  return %7 }";

static DLTensor tensor(void* data, DLDataType dtype, int ndim, int64_t* shape) {
  DLTensor result = {.data = data, .device = {kDLCPU, 0}, .ndim = ndim, .dtype = dtype, .shape = shape};
  return result;
}

static int fail(FlashliftError* error) {
  fprintf(stderr, "%s\n", flashlift_error_message(error));
  flashlift_error_destroy(error);
  return 1;
}

int main(void) {
  FlashliftAttention* attention = NULL;
  FlashliftError* error = flashlift_attention_compile(kProblem, NULL, &attention);
  if (error != NULL) {
    return fail(error);
  }

  float* const memory = malloc(4 * kSize * sizeof(float)); /* q, k, v, out */
  int32_t document[kLength];
  for (int i = 0; i < 3 * kSize; ++i) {
    memory[i] = 0.5f;
  }
  for (int i = 0; i < kLength; ++i) {
    document[i] = i / 300;
  }

  const DLDataType f32 = {kDLFloat, 32, 1}, i32 = {kDLInt, 32, 1};
  int64_t shape[] = {1, kHeads, kLength, kDepth}, document_shape[] = {kLength};
  const DLTensor q = tensor(memory, f32, 4, shape), k = tensor(memory + kSize, f32, 4, shape);
  const DLTensor v = tensor(memory + 2 * kSize, f32, 4, shape), out = tensor(memory + 3 * kSize, f32, 4, shape);
  const DLTensor ids = tensor(document, i32, 1, document_shape);
  const DLTensor* const captures[] = {&ids};
  const FlashliftArguments arguments = {.struct_size = sizeof(FlashliftArguments),
                                        .q = &q,
                                        .k = &k,
                                        .v = &v,
                                        .out = &out,
                                        .captures = captures,
                                        .capture_count = 1};
  error = flashlift_attention_run(attention, &arguments, NULL);
  if (error != NULL) {
    return fail(error);
  }
  printf("%s: out[0] = %.3f\n", flashlift_attention_implementation(attention), memory[3 * kSize]);
  flashlift_attention_destroy(attention);
  free(memory);
  return 0;
}
