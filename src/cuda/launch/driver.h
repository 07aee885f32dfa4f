// The functions of the CUDA driver that Flashlift uses. They are declared by hand and loaded at first use, so that the
// build needs no CUDA header, and the same binary runs without a GPU.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "flashlift/result.h"

namespace flashlift::cuda {

// The driver's own types. Handles are opaque pointers; enumerators have the driver's values.
using CuDevice = int;
using CuContext = struct CuContextTag*;
using CuLibrary = struct CuLibraryTag*;
// A kernel of a library. The driver accepts its function in one context wherever it accepts the kernel; cuda.h casts
// between the two.
using CuKernel = struct CuKernelTag*;
using CuFunction = CuKernel;
using CuStream = struct CuStreamTag*;
using CuEvent = struct CuEventTag*;
using CuGraph = struct CuGraphTag*;
using CuGraphNode = struct CuGraphNodeTag*;
using CuUserObject = struct CuUserObjectTag*;
using CuPointer = uint64_t;
using CuResult = int;

enum CuDeviceAttribute : int {
  kMultiprocessors = 16,
  kMemoryBusBits = 37,
  kL2CacheBytes = 38,
  kComputeMajor = 75,
  kComputeMinor = 76,
  kSharedBytesOptIn = 97,
};
enum CuFunctionAttribute : int { kMaxDynamicSharedBytes = 8 };
enum CuCaptureMode : int { kCaptureRelaxed = 2 };
enum CuStreamFlags : unsigned { kStreamNonBlocking = 1 };
enum CuUserObjectFlags : unsigned { kNoDestructorSync = 1 };
enum CuRetainFlags : unsigned { kRetainMove = 1 };

struct Driver {
  // A member is null if the driver lacks it. Names are the driver's.
  CuResult (*cuInit)(unsigned) = nullptr;
  CuResult (*cuDriverGetVersion)(int*) = nullptr;
  CuResult (*cuGetErrorString)(CuResult, const char**) = nullptr;
  CuResult (*cuDeviceGetCount)(int*) = nullptr;
  CuResult (*cuDeviceGet)(CuDevice*, int) = nullptr;
  CuResult (*cuDeviceGetName)(char*, int, CuDevice) = nullptr;
  CuResult (*cuDeviceTotalMem)(size_t*, CuDevice) = nullptr;
  CuResult (*cuDeviceGetAttribute)(int*, int, CuDevice) = nullptr;
  CuResult (*cuDevicePrimaryCtxRetain)(CuContext*, CuDevice) = nullptr;
  CuResult (*cuCtxGetCurrent)(CuContext*) = nullptr;
  CuResult (*cuCtxPushCurrent)(CuContext) = nullptr;
  CuResult (*cuCtxPopCurrent)(CuContext*) = nullptr;
  CuResult (*cuCtxGetId)(CuContext, unsigned long long*) = nullptr;
  CuResult (*cuStreamGetCtx)(CuStream, CuContext*) = nullptr;
  CuResult (*cuStreamGetId)(CuStream, unsigned long long*) = nullptr;
  CuResult (*cuStreamIsCapturing)(CuStream, int*) = nullptr;
  CuResult (*cuStreamGetCaptureInfo)(CuStream, int*, uint64_t*, CuGraph*, const CuGraphNode**, size_t*) = nullptr;
  CuResult (*cuStreamSynchronize)(CuStream) = nullptr;
  CuResult (*cuStreamCreate)(CuStream*, unsigned) = nullptr;
  CuResult (*cuStreamDestroy)(CuStream) = nullptr;
  CuResult (*cuThreadExchangeStreamCaptureMode)(int*) = nullptr;
  CuResult (*cuUserObjectCreate)(CuUserObject*, void*, void (*)(void*), unsigned, unsigned) = nullptr;
  CuResult (*cuUserObjectRelease)(CuUserObject, unsigned) = nullptr;
  CuResult (*cuGraphRetainUserObject)(CuGraph, CuUserObject, unsigned, unsigned) = nullptr;
  CuResult (*cuMemAlloc)(CuPointer*, size_t) = nullptr;
  CuResult (*cuMemFree)(CuPointer) = nullptr;
  CuResult (*cuMemAllocAsync)(CuPointer*, size_t, CuStream) = nullptr;
  CuResult (*cuMemFreeAsync)(CuPointer, CuStream) = nullptr;
  CuResult (*cuMemsetD8Async)(CuPointer, unsigned char, size_t, CuStream) = nullptr;
  CuResult (*cuMemcpyHtoD)(CuPointer, const void*, size_t) = nullptr;
  CuResult (*cuMemcpyDtoH)(void*, CuPointer, size_t) = nullptr;
  CuResult (*cuEventCreate)(CuEvent*, unsigned) = nullptr;
  CuResult (*cuEventDestroy)(CuEvent) = nullptr;
  CuResult (*cuEventRecord)(CuEvent, CuStream) = nullptr;
  CuResult (*cuEventSynchronize)(CuEvent) = nullptr;
  CuResult (*cuEventElapsedTime)(float*, CuEvent, CuEvent) = nullptr;
  CuResult (*cuLibraryLoadData)(CuLibrary*, const void*, int*, void**, unsigned, int*, void**, unsigned) = nullptr;
  CuResult (*cuLibraryUnload)(CuLibrary) = nullptr;
  CuResult (*cuLibraryGetKernel)(CuKernel*, CuLibrary, const char*) = nullptr;
  CuResult (*cuKernelGetFunction)(CuFunction*, CuKernel) = nullptr;
  CuResult (*cuKernelSetAttribute)(int, int, CuKernel, CuDevice) = nullptr;
  CuResult (*cuLaunchKernel)(CuKernel, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, CuStream,
                             void**, void**) = nullptr;
  CuResult (*cuTensorMapEncodeTiled)(void*, int, uint32_t, void*, const uint64_t*, const uint64_t*, const uint32_t*,
                                     const uint32_t*, int, int, int, int) = nullptr;

  int version = 0;  // the CUDA version that it supports: 13000 is 13.0

  // The initialised driver of this process. Errors: kNotFound if there is none, kUnsupported if it is too old.
  static Result<const Driver*> get();
  // Converts a result other than 0 to an error that names the call.
  Status check(CuResult result, const char* call) const;
};

struct Device {
  CuDevice handle = 0;
  int ordinal = 0;
  std::string name;
  int architecture = 0;  // 90 for compute capability 9.0
  int multiprocessors = 0;
  int64_t memory_bytes = 0;
  int64_t l2_bytes = 0;
  int64_t shared_bytes = 0;  // maximum for one block
  int memory_bus_bits = 0;
};

// The number of GPUs that the driver shows. Errors: those of Driver::get().
Result<int> device_count();
// Errors: kNotFound if there is no such device, and those of Driver::get().
Result<Device> get_device(int ordinal);

// Makes a context current during its lifetime, unless it already is.
class CurrentContext {
 public:
  // The stream's context; for the default stream, the thread's current one or the device's primary one.
  static Result<CurrentContext> of(const Driver& driver, CuStream stream, CuDevice device);
  ~CurrentContext();
  CurrentContext(CurrentContext&& other) noexcept;
  CurrentContext& operator=(CurrentContext&&) = delete;

  // Unlike the handle, no other context of the process ever has this id.
  uint64_t id() const { return id_; }

 private:
  CurrentContext(const Driver& driver, uint64_t id, bool pushed) : driver_(driver), id_(id), pushed_(pushed) {}
  const Driver& driver_;
  uint64_t id_;
  bool pushed_;
};

}  // namespace flashlift::cuda
