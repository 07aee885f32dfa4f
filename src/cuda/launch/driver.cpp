#include "cuda/launch/driver.h"

#include <dlfcn.h>

#include "support/error.h"
#include "support/lazy.h"

namespace flashlift::cuda {
namespace {

// Context-independent kernels (cuLibrary*) and bulk tensor copies require 12.0.
constexpr int kOldestDriver = 12000;

#ifdef FLASHLIFT_HAS_CPU
constexpr const char* kUseCpu = "use device cpu, or ";
#else
constexpr const char* kUseCpu = "";
#endif

Result<const Driver*> load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return not_found("no CUDA driver on this machine ({}); {}install NVIDIA's driver", dlerror(), kUseCpu);
  }
  auto* driver = new Driver();  // NOLINT: lives as long as the process, like the library
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(library, name));
    if (function == nullptr) {
      missing += (missing.empty() ? "" : ", ") + std::string(name);
    }
  };
  // Names with a version are those to which cuda.h maps the plain ones.
  find(driver->cuInit, "cuInit");
  find(driver->cuDriverGetVersion, "cuDriverGetVersion");
  find(driver->cuGetErrorString, "cuGetErrorString");
  find(driver->cuDeviceGetCount, "cuDeviceGetCount");
  find(driver->cuDeviceGet, "cuDeviceGet");
  find(driver->cuDeviceGetName, "cuDeviceGetName");
  find(driver->cuDeviceTotalMem, "cuDeviceTotalMem_v2");
  find(driver->cuDeviceGetAttribute, "cuDeviceGetAttribute");
  find(driver->cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  find(driver->cuCtxGetCurrent, "cuCtxGetCurrent");
  find(driver->cuCtxPushCurrent, "cuCtxPushCurrent_v2");
  find(driver->cuCtxPopCurrent, "cuCtxPopCurrent_v2");
  find(driver->cuCtxGetId, "cuCtxGetId");
  find(driver->cuStreamGetCtx, "cuStreamGetCtx");
  find(driver->cuStreamGetId, "cuStreamGetId");
  find(driver->cuStreamIsCapturing, "cuStreamIsCapturing");
  find(driver->cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2");
  find(driver->cuUserObjectCreate, "cuUserObjectCreate");
  find(driver->cuUserObjectRelease, "cuUserObjectRelease");
  find(driver->cuGraphRetainUserObject, "cuGraphRetainUserObject");
  find(driver->cuStreamSynchronize, "cuStreamSynchronize");
  find(driver->cuStreamCreate, "cuStreamCreate");
  find(driver->cuStreamDestroy, "cuStreamDestroy_v2");
  find(driver->cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  find(driver->cuMemAlloc, "cuMemAlloc_v2");
  find(driver->cuMemFree, "cuMemFree_v2");
  find(driver->cuMemAllocAsync, "cuMemAllocAsync");
  find(driver->cuMemFreeAsync, "cuMemFreeAsync");
  find(driver->cuMemsetD8Async, "cuMemsetD8Async");
  find(driver->cuMemcpyHtoD, "cuMemcpyHtoD_v2");
  find(driver->cuMemcpyDtoH, "cuMemcpyDtoH_v2");
  find(driver->cuEventCreate, "cuEventCreate");
  find(driver->cuEventDestroy, "cuEventDestroy_v2");
  find(driver->cuEventRecord, "cuEventRecord");
  find(driver->cuEventSynchronize, "cuEventSynchronize");
  find(driver->cuEventElapsedTime, "cuEventElapsedTime");
  find(driver->cuLibraryLoadData, "cuLibraryLoadData");
  find(driver->cuLibraryUnload, "cuLibraryUnload");
  find(driver->cuLibraryGetKernel, "cuLibraryGetKernel");
  find(driver->cuKernelGetFunction, "cuKernelGetFunction");
  find(driver->cuKernelSetAttribute, "cuKernelSetAttribute");
  find(driver->cuLaunchKernel, "cuLaunchKernel");
  find(driver->cuTensorMapEncodeTiled, "cuTensorMapEncodeTiled");
  int& version = driver->version;
  if (driver->cuDriverGetVersion != nullptr) {
    driver->cuDriverGetVersion(&version);
  }
  if (!missing.empty() || version < kOldestDriver) {
    return unsupported("the CUDA driver is for CUDA {}.{}, expected 12.0 or newer{}{}; update NVIDIA's driver",
                       version / 1000, version % 1000 / 10, missing.empty() ? "" : "; it lacks ", missing);
  }
  if (const CuResult result = driver->cuInit(0); result != 0) {
    return not_found("the CUDA driver found no usable GPU (cuInit: {}); {}see whether nvidia-smi lists one",
                     driver->check(result, "cuInit").error().message, kUseCpu);
  }
  return driver;
}

}  // namespace

Result<const Driver*> Driver::get() {
  static constinit Lazy<const Result<const Driver*>> loaded;
  return loaded.get(load);
}

Status Driver::check(CuResult result, const char* call) const {
  if (result == 0) {
    return {};
  }
  const char* text = nullptr;
  cuGetErrorString(result, &text);
  return internal_error("{} failed: {} ({})", call, text != nullptr ? text : "unknown error", result);
}

Result<int> device_count() {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  int count = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver->check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount"));
  return count;
}

Result<Device> get_device(int ordinal) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Driver* driver, Driver::get());
  FLASHLIFT_ASSIGN_OR_RETURN(const int count, device_count());
  if (ordinal < 0 || ordinal >= count) {
    return not_found("there is no GPU {}: this machine has {} (0 to {})", ordinal, count, count - 1);
  }
  Device device;
  device.ordinal = ordinal;
  FLASHLIFT_RETURN_IF_ERROR(driver->check(driver->cuDeviceGet(&device.handle, ordinal), "cuDeviceGet"));
  char name[256] = {};
  FLASHLIFT_RETURN_IF_ERROR(
      driver->check(driver->cuDeviceGetName(name, sizeof(name), device.handle), "cuDeviceGetName"));
  device.name = name;
  constexpr CuDeviceAttribute kAttributes[] = {kComputeMajor, kComputeMinor,     kMultiprocessors,
                                               kL2CacheBytes, kSharedBytesOptIn, kMemoryBusBits};
  int values[std::size(kAttributes)] = {};
  for (size_t i = 0; i < std::size(kAttributes); ++i) {
    FLASHLIFT_RETURN_IF_ERROR(
        driver->check(driver->cuDeviceGetAttribute(&values[i], kAttributes[i], device.handle), "cuDeviceGetAttribute"));
  }
  size_t memory = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver->check(driver->cuDeviceTotalMem(&memory, device.handle), "cuDeviceTotalMem"));
  device.memory_bytes = static_cast<int64_t>(memory);
  device.architecture = 10 * values[0] + values[1];
  device.multiprocessors = values[2];
  device.l2_bytes = values[3];
  device.shared_bytes = values[4];
  device.memory_bus_bits = values[5];
  return device;
}

Result<CurrentContext> CurrentContext::of(const Driver& driver, CuStream stream, CuDevice device) {
  CuContext current = nullptr;
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuCtxGetCurrent(&current), "cuCtxGetCurrent"));
  CuContext wanted = current;
  // 0, 1 and 2 are default streams of the current context.
  if (reinterpret_cast<uintptr_t>(stream) > 2) {
    FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuStreamGetCtx(stream, &wanted), "cuStreamGetCtx"));
  } else if (current == nullptr) {
    FLASHLIFT_RETURN_IF_ERROR(
        driver.check(driver.cuDevicePrimaryCtxRetain(&wanted, device), "cuDevicePrimaryCtxRetain"));
  }
  unsigned long long id = 0;
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuCtxGetId(wanted, &id), "cuCtxGetId"));
  if (wanted == current) {
    return CurrentContext(driver, id, false);
  }
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuCtxPushCurrent(wanted), "cuCtxPushCurrent"));
  return CurrentContext(driver, id, true);
}

CurrentContext::CurrentContext(CurrentContext&& other) noexcept
    : driver_(other.driver_), id_(other.id_), pushed_(other.pushed_) {
  other.pushed_ = false;
}

CurrentContext::~CurrentContext() {
  if (pushed_) {
    CuContext ignored = nullptr;
    driver_.cuCtxPopCurrent(&ignored);
  }
}

}  // namespace flashlift::cuda
