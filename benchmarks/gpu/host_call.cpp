// Host time of a warmed call on a GPU, from the C interface inwards, and what the driver takes of it.
//
//   host_call_benchmark ["attn ..."]      a problem without captured tensors
//
// Needs a GPU and NVRTC. Each line is the least of several laps of calls without a wait between them; a lap is shorter
// than the stream's queue, so that no call waits for the GPU. The launch of an empty kernel with as many bytes of
// parameters is what no call can be faster than.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <functional>
#include <string>
#include <vector>

#include "cuda/compile/cubin_cache.h"
#include "cuda/emit/forward_config.h"
#include "cuda/kernels/common/forward_params.h"
#include "cuda/launch/driver.h"
#include "cuda/launch/forward.h"
#include "cuda/launch/loaded_kernel.h"
#include "cuda/launch/tensor_map.h"
#include "flashlift/attention.h"
#include "flashlift/flashlift.h"
#include "runtime/simplified.h"

namespace flashlift {
namespace {

constexpr int kLaps = 9;
constexpr int kCalls = 200;

Result<TensorView> allocate(const cuda::Driver& driver, DType dtype, const std::vector<int64_t>& shape) {
  cuda::CuPointer memory = 0;
  size_t bytes = size_in_bytes(dtype);
  for (const int64_t size : shape) {
    bytes *= static_cast<size_t>(size);
  }
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuMemAlloc(&memory, bytes), "cuMemAlloc"));
  FLASHLIFT_RETURN_IF_ERROR(driver.check(driver.cuMemsetD8Async(memory, 0, bytes, nullptr), "cuMemsetD8Async"));
  return dense_view(reinterpret_cast<void*>(memory), dtype, shape);
}

// As the C interface takes it; points into the view.
DLTensor to_dlpack(TensorView& view) {
  const auto code = static_cast<uint8_t>(view.dtype == DType::kBF16 ? kDLBfloat : kDLFloat);
  return {.data = view.data,
          .device = {kDLCUDA, 0},
          .ndim = view.rank,
          .dtype = {code, static_cast<uint8_t>(8 * size_in_bytes(view.dtype)), 1},
          .shape = view.sizes.data(),
          .strides = view.strides.data(),
          .byte_offset = 0};
}

void must(const Status& status) {
  if (!status.ok()) {
    fmt::print(stderr, "{}\n", status.error().message);
    std::exit(1);
  }
}

template <typename T>
T must(Result<T> result) {
  if (!result.ok()) {
    must(Status(result.error()));
  }
  return *std::move(result);
}

void must(FlashliftError* error) {
  if (error != nullptr) {
    fmt::print(stderr, "{}\n", flashlift_error_message(error));
    std::exit(1);
  }
}

class Measurement {
 public:
  explicit Measurement(const cuda::Driver& driver) : driver_(driver) {}

  void print(const std::string& name, const std::function<void()>& call) const {
    double least = 1e9;
    for (int lap = 0; lap < kLaps; ++lap) {
      const auto begin = std::chrono::steady_clock::now();
      for (int i = 0; i < kCalls; ++i) {
        call();
      }
      const std::chrono::duration<double, std::micro> lap_time = std::chrono::steady_clock::now() - begin;
      least = std::min(least, lap_time.count() / kCalls);
      must(driver_.check(driver_.cuStreamSynchronize(nullptr), "cuStreamSynchronize"));
    }
    fmt::print("  {:<56}{:6.2f} us\n", name, least);
  }

 private:
  const cuda::Driver& driver_;
};

// A kernel that does nothing, with parameters of the size that the forward kernel's have.
cuda::KernelSource empty_kernel(size_t parameter_bytes, int architecture) {
  cuda::KernelSource source;
  source.name = "empty.cu";
  source.text = fmt::format(
      "struct Parameters {{ unsigned char bytes[{}]; }};\n"
      "extern \"C\" __global__ void empty(const __grid_constant__ Parameters parameters) {{}}\n",
      parameter_bytes);
  source.architecture = architecture;
  return source;
}

struct Call {
  Problem problem;
  TensorView q, k, v, out;
  AttentionArguments views() const { return {.q = q, .k = k, .v = v, .out = out}; }
};

Call create_call(const cuda::Driver& driver, const char* text) {
  const Problem p = must(parse_problem(text));
  return {p, must(allocate(driver, p.dtype, {p.batch, p.q_heads, p.q_len, p.head_dim})),
          must(allocate(driver, p.dtype, {p.batch, p.kv_heads, p.kv_len, p.head_dim})),
          must(allocate(driver, p.dtype, {p.batch, p.kv_heads, p.kv_len, p.value_dim})),
          must(allocate(driver, p.out_dtype, {p.batch, p.q_heads, p.q_len, p.value_dim}))};
}

void measure_flashlift(const Measurement& measurement, const char* text, Call& call, const cuda::Device& device) {
  FlashliftAttention* compiled = nullptr;
  const FlashliftCompileOptions options{.struct_size = sizeof(FlashliftCompileOptions), .device = {kDLCUDA, 0}};
  must(flashlift_attention_compile(text, &options, &compiled));
  const DLTensor q = to_dlpack(call.q);
  const DLTensor k = to_dlpack(call.k);
  const DLTensor v = to_dlpack(call.v);
  const DLTensor out = to_dlpack(call.out);
  const FlashliftArguments arguments{.struct_size = sizeof(FlashliftArguments), .q = &q, .k = &k, .v = &v, .out = &out};
  measurement.print("flashlift_attention_run", [&] { must(flashlift_attention_run(compiled, &arguments, nullptr)); });
  const Attention attention = must(Attention::compile(call.problem, {.device = DeviceKind::kCuda}));
  const AttentionArguments views = call.views();
  measurement.print("Attention::run", [&] { must(attention.run(views)); });
  measurement.print("  of this: verify", [&] { must(verify(call.problem, views)); });
  const auto compile = [](const cuda::KernelSource& source) { return cuda::cached_cubin(source); };
  const cuda::LengthClass length = cuda::length_class(call.problem.q_len);
  const auto kernel = cuda::Forward::compile(*runtime::SimplifiedProblem(call.problem), device,
                                             cuda::KernelKind::kHopper, length, compile);
  if (kernel.ok()) {
    measurement.print("  of this: Forward::run", [&] { must(kernel->run(views, nullptr)); });
  }
  flashlift_attention_destroy(compiled);
}

void measure_driver(const Measurement& measurement, const cuda::Driver& driver, const Call& call,
                    const cuda::Device& device) {
  measurement.print("cuTensorMapEncodeTiled of q, k and v", [&] {
    for (const TensorView* view : {&call.q, &call.k, &call.v}) {
      static_cast<void>(must(cuda::encode_tensor_map(driver, *view, 64, cuda::kSm90BoxColumns)));
    }
  });
  measurement.print("what else is asked of the driver", [&] {
    cuda::CuContext context = nullptr;
    unsigned long long id = 0;
    int capturing = 0;
    driver.cuCtxGetCurrent(&context);
    driver.cuCtxGetId(context, &id);
    driver.cuStreamIsCapturing(nullptr, &capturing);
    driver.cuStreamGetId(nullptr, &id);
  });
  const size_t bytes = sizeof(cuda::ForwardParams) - sizeof(cuda::ForwardParams::captures);
  const auto library = must(cuda::LoadedLibrary::compile(empty_kernel(bytes, device.architecture), cuda::cached_cubin));
  cuda::CuKernel kernel = must(library->kernel("empty", device.handle, 0));
  std::vector<unsigned char> parameters(bytes);
  void* list[] = {parameters.data()};
  cuda::CuFunction function = nullptr;
  must(driver.check(driver.cuKernelGetFunction(&function, kernel), "cuKernelGetFunction"));
  const auto launch = [&](cuda::CuFunction f) {
    must(driver.check(driver.cuLaunchKernel(f, 132, 1, 1, 384, 1, 1, 0, nullptr, list, nullptr), "cuLaunchKernel"));
  };
  measurement.print(fmt::format("cuLaunchKernel of an empty kernel, {} bytes of parameters", bytes),
                    [&] { launch(kernel); });
  measurement.print("the same of its function in the context", [&] { launch(function); });
}

int run(const char* text) {
  const cuda::Driver* driver = must(cuda::Driver::get());
  const cuda::Device device = must(cuda::get_device(0));
  const cuda::CurrentContext context = must(cuda::CurrentContext::of(*driver, nullptr, device.handle));
  Call call = create_call(*driver, text);
  fmt::print("{}, {}\n", device.name, text);
  const Measurement measurement(*driver);
  measure_flashlift(measurement, text, call, device);
  measure_driver(measurement, *driver, call, device);
  return 0;
}

}  // namespace
}  // namespace flashlift

int main(int count, char** arguments) {
  return flashlift::run(count > 1 ? arguments[1] : "attn h8 s128 d64 bf16 out=bf16 causal");
}
