// The stages of each handler, under the names by which JAX registers them; docs/custom_call.md describes them.
#pragma once

#include "xla/ffi/api/c_api.h"

#pragma GCC visibility push(default)

extern "C" {
XLA_FFI_Error* flashlift_xla_attention_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_execute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_backward_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_backward_execute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_cuda_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_cuda_execute(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_backward_cuda_instantiate(XLA_FFI_CallFrame* frame);
XLA_FFI_Error* flashlift_xla_attention_backward_cuda_execute(XLA_FFI_CallFrame* frame);
}

#pragma GCC visibility pop
