/* The part of PJRT's C interface that these examples use, for C, C++ and cgo. A framework takes openxla's
 * xla/pjrt/c/pjrt_c_api.h, which has all of it. */
#ifndef EXAMPLES_XLA_PJRT_H_
#define EXAMPLES_XLA_PJRT_H_

#include <stddef.h>
#include <stdint.h>

typedef struct PJRT_Error PJRT_Error;

typedef struct PJRT_Api {
  size_t struct_size;
  void* extensions;
  struct {
    size_t struct_size;
    void* extensions;
    int32_t major_version, minor_version;
  } version;
  PJRT_Error* (*functions[])(void* args);
} PJRT_Api;

/* Indices into functions, the same in each version since 0.57. */
enum {
  PJRT_Error_Destroy = 0,
  PJRT_Error_Message = 1,
  PJRT_Plugin_Initialize = 3,
  PJRT_Event_Destroy = 5,
  PJRT_Event_Await = 8,
  PJRT_Client_Create = 10,
  PJRT_Client_Destroy = 11,
  PJRT_Client_PlatformName = 12,
  PJRT_Client_PlatformVersion = 14,
  PJRT_Client_AddressableDevices = 16,
  PJRT_Client_Compile = 20,
  PJRT_Client_BufferFromHostBuffer = 22,
  PJRT_Executable_Destroy = 40,
  PJRT_Executable_NumOutputs = 44,
  PJRT_LoadedExecutable_Destroy = 50,
  PJRT_LoadedExecutable_GetExecutable = 51,
  PJRT_LoadedExecutable_Execute = 55,
  PJRT_Buffer_Destroy = 58,
  PJRT_Buffer_ElementType = 59,
  PJRT_Buffer_Dimensions = 60,
  PJRT_Buffer_ToHostBuffer = 70,
  PJRT_Executable_GetCompiledMemoryStats = 96
};

/* Every structure of arguments begins with its size and a list of extensions, NULL here; results stand at the end. */
#define PJRT_ARGS     \
  size_t struct_size; \
  void* extensions

/* For calls with one object and no result, or one of 64 bits or less. */
typedef struct {
  PJRT_ARGS;
  void* object;
} PJRT_ObjectArgs;

typedef struct {
  PJRT_ARGS;
  const void* object;
  const char* text; /* not closed by a zero */
  size_t size;
} PJRT_TextArgs; /* an error's message, a client's platform and its version */

typedef struct {
  PJRT_ARGS;
} PJRT_InitializeArgs;

typedef struct {
  PJRT_ARGS;
  const void* options;
  size_t option_count;
  void* callbacks[4];
  void* client;
  void* more_callbacks[2];
} PJRT_ClientCreateArgs;

typedef struct {
  PJRT_ARGS;
  void* client;
  void* const* devices;
  size_t count;
} PJRT_DevicesArgs;

typedef struct {
  PJRT_ARGS;
  const char* code;
  size_t code_size;
  const char* format; /* "mlir": StableHLO, as text or as bytes */
  size_t format_size;
} PJRT_Program;

typedef struct {
  PJRT_ARGS;
  void* client;
  const PJRT_Program* program;
  const char* options; /* a CompileOptionsProto */
  size_t options_size;
  void* executable;
} PJRT_CompileArgs;

/* The shortest: executable_build_options {num_replicas: 1, num_partitions: 1}. */
#define PJRT_ONE_DEVICE "\x1a\x04\x20\x01\x28\x01"

typedef struct {
  PJRT_ARGS;
  void* loaded_executable;
  void* executable;
} PJRT_GetExecutableArgs;

typedef struct {
  PJRT_ARGS;
  void* executable;
  size_t count;
} PJRT_NumOutputsArgs;

typedef struct {
  PJRT_ARGS;
  void* executable;
  int64_t code_bytes, argument_bytes, output_bytes, alias_bytes, temporary_bytes, others[10];
} PJRT_MemoryStatsArgs;

typedef struct {
  PJRT_ARGS;
  void* client;
  const void* data;
  int32_t type;
  const int64_t* dims;
  size_t dim_count;
  const int64_t* strides;
  size_t stride_count;
  int32_t semantics; /* 0: the data may change after the call */
  void* device;
  void* memory;
  void* layout;
  void* done_with_host_buffer; /* an event */
  void* buffer;
} PJRT_BufferFromHostArgs;

typedef struct {
  PJRT_ARGS;
  void* fields[30]; /* later versions have more of them; all may be zero */
} PJRT_ExecuteOptions;

typedef struct {
  PJRT_ARGS;
  void* loaded_executable;
  PJRT_ExecuteOptions* options;
  void* const* const* arguments; /* a list for each device */
  size_t device_count;
  size_t argument_count;
  void** const* outputs;
  void** events; /* one for each device, or NULL */
  void* device;
} PJRT_ExecuteArgs;

typedef struct {
  PJRT_ARGS;
  void* buffer;
  int32_t type;
} PJRT_ElementTypeArgs;

typedef struct {
  PJRT_ARGS;
  void* buffer;
  const int64_t* dims;
  size_t count;
} PJRT_DimensionsArgs;

typedef struct {
  PJRT_ARGS;
  void* buffer;
  void* layout;
  void* destination; /* NULL: only the size is asked for */
  size_t size;
  void* event;
} PJRT_ToHostArgs;

#endif
