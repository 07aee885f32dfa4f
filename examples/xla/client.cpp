// A client of PJRT's C interface with nothing of XLA in it: loads a plugin, compiles a StableHLO module, runs it and
// prints times. With two plugins it runs the module on both and compares.
//
//   c++ -O2 -std=c++17 client.cpp -o client -ldl
//   FLASHLIFT_PJRT_PLUGIN=/path/to/pjrt_c_api_cpu_plugin.so
//     ./client attention.mlir /path/to/pjrt_c_api_flashlift-cpu_plugin.so /path/to/pjrt_c_api_cpu_plugin.so
//
// Options: --runs N (5); --inputs FILE, the arguments' bytes one after the other (otherwise drawn); --tolerance X, the
// largest difference of the two that is no failure.
#include <dlfcn.h>
#ifdef __GLIBC__
#include <malloc.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <iterator>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "pjrt.h"

namespace {

using Clock = std::chrono::steady_clock;

double milliseconds_since(Clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
}

struct ElementType {
  const char* name;
  int32_t number;  // PJRT_Buffer_Type
  size_t bytes;
};
constexpr ElementType kElementTypes[] = {{"i1", 1, 1},   {"i8", 2, 1},   {"i16", 3, 2},  {"i32", 4, 4},  {"i64", 5, 8},
                                         {"ui8", 6, 1},  {"ui16", 7, 2}, {"ui32", 8, 4}, {"ui64", 9, 8}, {"f16", 10, 2},
                                         {"f32", 11, 4}, {"f64", 12, 8}, {"bf16", 13, 2}};

const ElementType& element_type(const std::string& name) {
  for (const ElementType& type : kElementTypes) {
    if (name == type.name) {
      return type;
    }
  }
  throw std::runtime_error("element type " + name + " is not one of this example's");
}

const ElementType& element_type(int32_t number) {
  for (const ElementType& type : kElementTypes) {
    if (number == type.number) {
      return type;
    }
  }
  throw std::runtime_error("a result has element type " + std::to_string(number));
}

struct Tensor {
  ElementType type;
  std::vector<int64_t> dims;
  std::string bytes;

  size_t count() const {
    size_t count = 1;
    for (const int64_t dim : dims) {
      count *= static_cast<size_t>(dim);
    }
    return count;
  }

  // An element as a number; of 16-bit floats by their bits.
  double at(size_t i) const {
    const std::string type_name = type.name;
    const auto read = [&](auto value) {
      std::memcpy(&value, bytes.data() + i * sizeof(value), sizeof(value));
      return value;
    };
    if (type_name == "f32") {
      return read(float{});
    }
    if (type_name == "f64") {
      return read(double{});
    }
    if (type_name == "bf16") {
      const uint32_t bits = uint32_t{read(uint16_t{})} << 16;
      float value;
      std::memcpy(&value, &bits, sizeof(value));
      return value;
    }
    if (type_name == "f16") {
      const uint16_t bits = read(uint16_t{});
      const int exponent = bits >> 10 & 31, fraction = bits & 1023;
      const double size = exponent == 31  ? (fraction != 0 ? NAN : INFINITY)
                          : exponent == 0 ? std::ldexp(fraction, -24)
                                          : std::ldexp(1024 + fraction, exponent - 25);
      return (bits & 0x8000) != 0 ? -size : size;
    }
    return type.bytes == 8   ? static_cast<double>(read(int64_t{}))
           : type.bytes == 4 ? static_cast<double>(read(int32_t{}))
           : type.bytes == 2 ? static_cast<double>(read(int16_t{}))
                             : static_cast<double>(read(int8_t{}));
  }
};

std::string shape_of(const Tensor& tensor) {
  std::string shape;
  for (const int64_t dim : tensor.dims) {
    shape += std::to_string(dim) + "x";
  }
  return shape + tensor.type.name;
}

// A loaded plugin. Its functions take one structure each and return an error or NULL.
class Plugin {
 public:
  explicit Plugin(const std::string& path) {
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
      throw std::runtime_error(dlerror());
    }
    const auto get_api = reinterpret_cast<const PJRT_Api* (*)()>(dlsym(library, "GetPjrtApi"));
    api_ = get_api == nullptr ? nullptr : get_api();
    if (api_ == nullptr) {
      throw std::runtime_error(path + " is no PJRT plugin");
    }
    call<PJRT_InitializeArgs>(PJRT_Plugin_Initialize, {});
  }

  // Sets the size that every structure begins with, calls, and gives the structure back with its results.
  template <typename Args>
  Args call(int function, Args args) const {
    args.struct_size = sizeof(Args);
    PJRT_Error* error = api_->functions[function](&args);
    if (error == nullptr) {
      return args;
    }
    PJRT_TextArgs message = {sizeof(PJRT_TextArgs), nullptr, error, "", 0};
    api_->functions[PJRT_Error_Message](&message);
    const std::string text(message.text, message.size);
    PJRT_ObjectArgs destroy = {sizeof(PJRT_ObjectArgs), nullptr, error};
    api_->functions[PJRT_Error_Destroy](&destroy);
    throw std::runtime_error(text);
  }

  // For functions that are given one object, which stands first.
  template <typename Args = PJRT_ObjectArgs>
  Args ask(int function, void* object) const {
    Args args = {};
    std::memcpy(reinterpret_cast<char*>(&args) + offsetof(PJRT_ObjectArgs, object), &object, sizeof(object));
    return call(function, args);
  }

  void await(void* event) const {
    ask(PJRT_Event_Await, event);
    ask(PJRT_Event_Destroy, event);
  }

 private:
  const PJRT_Api* api_ = nullptr;
};

// One module, compiled by one plugin, with its arguments in the first device's memory.
class Program {
 public:
  Program(const std::string& plugin_path, const std::string& module, const std::vector<Tensor>& inputs)
      : plugin_(plugin_path) {
    client_ = plugin_.call<PJRT_ClientCreateArgs>(PJRT_Client_Create, {}).client;
    const auto devices = plugin_.ask<PJRT_DevicesArgs>(PJRT_Client_AddressableDevices, client_);
    if (devices.count == 0) {
      throw std::runtime_error("the plugin has no device");
    }
    const PJRT_Program program = {sizeof(PJRT_Program), nullptr, module.data(), module.size(), "mlir", 4};
    const auto begin = Clock::now();
    PJRT_CompileArgs compile = {};
    compile.client = client_;
    compile.program = &program;
    compile.options = PJRT_ONE_DEVICE;
    compile.options_size = sizeof(PJRT_ONE_DEVICE) - 1;
    loaded_ = plugin_.call(PJRT_Client_Compile, compile).executable;
    compile_ms_ = milliseconds_since(begin);
    executable_ = plugin_.ask<PJRT_GetExecutableArgs>(PJRT_LoadedExecutable_GetExecutable, loaded_).executable;
    outputs_ = plugin_.ask<PJRT_NumOutputsArgs>(PJRT_Executable_NumOutputs, executable_).count;
    for (const Tensor& input : inputs) {
      PJRT_BufferFromHostArgs args = {};
      args.client = client_;
      args.data = input.bytes.data();
      args.type = input.type.number;
      args.dims = input.dims.data();
      args.dim_count = input.dims.size();
      args.device = devices.devices[0];
      args = plugin_.call(PJRT_Client_BufferFromHostBuffer, args);
      plugin_.await(args.done_with_host_buffer);
      inputs_.push_back(args.buffer);
    }
  }

  Program(const Program&) = delete;
  Program& operator=(const Program&) = delete;

  ~Program() {
    for (void* input : inputs_) {
      plugin_.ask(PJRT_Buffer_Destroy, input);
    }
    plugin_.ask(PJRT_Executable_Destroy, executable_);
    plugin_.ask(PJRT_LoadedExecutable_Destroy, loaded_);
    plugin_.ask(PJRT_Client_Destroy, client_);
  }

  std::string platform() const {
    const auto name = plugin_.ask<PJRT_TextArgs>(PJRT_Client_PlatformName, client_);
    const auto version = plugin_.ask<PJRT_TextArgs>(PJRT_Client_PlatformVersion, client_);
    std::string text = std::string(name.text, name.size) + ", " + std::string(version.text, version.size);
    std::replace(text.begin(), text.end(), '\n', ' ');
    return text;
  }

  double compile_ms() const { return compile_ms_; }

  int64_t temporary_bytes() const {
    return plugin_.ask<PJRT_MemoryStatsArgs>(PJRT_Executable_GetCompiledMemoryStats, executable_).temporary_bytes;
  }

  // Milliseconds, until the results are there.
  double run(std::vector<Tensor>& results) const {
    const auto begin = Clock::now();
    PJRT_ExecuteOptions options = {};
    options.struct_size = sizeof(options);
    std::vector<void*> outputs(outputs_);
    void* const* const argument_list = inputs_.data();
    void** const output_list = outputs.data();
    void* event = nullptr;
    PJRT_ExecuteArgs args = {};
    args.loaded_executable = loaded_;
    args.options = &options;
    args.arguments = &argument_list;
    args.device_count = 1;
    args.argument_count = inputs_.size();
    args.outputs = &output_list;
    args.events = &event;
    plugin_.call(PJRT_LoadedExecutable_Execute, args);
    plugin_.await(event);
    const double took = milliseconds_since(begin);
    results.clear();
    for (void* output : outputs) {
      results.push_back(to_host(output));
      plugin_.ask(PJRT_Buffer_Destroy, output);
    }
    return took;
  }

 private:
  Tensor to_host(void* buffer) const {
    const auto dims = plugin_.ask<PJRT_DimensionsArgs>(PJRT_Buffer_Dimensions, buffer);
    const auto type = plugin_.ask<PJRT_ElementTypeArgs>(PJRT_Buffer_ElementType, buffer);
    Tensor tensor{element_type(type.type), {dims.dims, dims.dims + dims.count}, ""};
    tensor.bytes.resize(tensor.count() * tensor.type.bytes);
    PJRT_ToHostArgs args = {};
    args.buffer = buffer;
    args.destination = tensor.bytes.data();
    args.size = tensor.bytes.size();
    plugin_.await(plugin_.call(PJRT_Buffer_ToHostBuffer, args).event);
    return tensor;
  }

  Plugin plugin_;
  void* client_ = nullptr;
  void* loaded_ = nullptr;
  void* executable_ = nullptr;
  size_t outputs_ = 0;
  std::vector<void*> inputs_;
  double compile_ms_ = 0;
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    throw std::runtime_error(path + " cannot be read");
  }
  return {std::istreambuf_iterator<char>(file), {}};
}

// The types of main's arguments, from "@main(%arg0: tensor<1x512x8x64xf32> {...}, ...".
std::vector<Tensor> inputs_of(const std::string& module) {
  std::vector<Tensor> inputs;
  const size_t main = module.find("@main(");
  if (main == std::string::npos) {
    throw std::runtime_error("the module is no text with a function @main(...)");
  }
  const size_t end = std::min(module.find("->", main), module.find("{\n", main));
  for (size_t at = module.find("tensor<", main); at < end; at = module.find("tensor<", at)) {
    at += strlen("tensor<");
    std::string type = module.substr(at, module.find('>', at) - at);
    Tensor tensor{};
    for (size_t x = type.find('x'); x != std::string::npos && std::isdigit(type[0]) != 0; x = type.find('x')) {
      tensor.dims.push_back(std::stoll(type.substr(0, x)));
      type = type.substr(x + 1);
    }
    tensor.type = element_type(type);
    inputs.push_back(std::move(tensor));
  }
  return inputs;
}

void draw(Tensor& tensor, std::mt19937& random) {
  std::normal_distribution<float> normal;
  tensor.bytes.assign(tensor.count() * tensor.type.bytes, '\0');
  const std::string type = tensor.type.name;
  for (size_t i = 0; i < tensor.count(); ++i) {
    const float value = normal(random);
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof(bits));
    if (type == "f32") {
      std::memcpy(tensor.bytes.data() + 4 * i, &bits, 4);
    } else if (type == "bf16") {
      bits >>= 16;
      std::memcpy(tensor.bytes.data() + 2 * i, &bits, 2);
    } else if (type == "i1") {
      tensor.bytes[i] = static_cast<char>(bits >> 20 & 1);
    }  // zeros otherwise
  }
}

double largest_difference(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
  double largest = 0;
  for (size_t t = 0; t < a.size(); ++t) {
    for (size_t i = 0; i < a[t].count(); ++i) {
      const double difference = std::abs(a[t].at(i) - b[t].at(i));
      const bool both_nan = std::isnan(a[t].at(i)) && std::isnan(b[t].at(i));
      largest = std::max(largest, both_nan ? 0 : std::isnan(difference) ? INFINITY : difference);
    }
  }
  return largest;
}

// A number of kilobytes in /proc/self/status, as megabytes; 0 where there is no such file.
double process_megabytes(const std::string& name) {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.rfind(name + ":", 0) == 0) {
      return std::atof(line.c_str() + name.size() + 1) * 1024 / 1e6;
    }
  }
  return 0;
}

// Runs once more, for the memory that the process takes beyond what it has: temporaries, those of custom calls too, and
// results.
double megabytes_of_run(const Program& program, std::vector<Tensor>& results) {
#ifdef __GLIBC__
  malloc_trim(0);  // else what earlier runs gave back to the allocator would not count
#endif
  const double before = process_megabytes("VmRSS");
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins anew
  program.run(results);
  return std::max(process_megabytes("VmHWM") - before, 0.0);
}

std::vector<Tensor> compile_and_run(const std::string& plugin, const std::string& module,
                                    const std::vector<Tensor>& inputs, int runs) {
  const Program program(plugin, module, inputs);
  std::vector<Tensor> results;
  const double first = program.run(results);
  std::vector<double> times;
  for (int i = 0; i < runs; ++i) {
    times.push_back(program.run(results));
  }
  std::sort(times.begin(), times.end());
  std::printf("%s\n  %s\n", plugin.c_str(), program.platform().c_str());
  std::printf("  compile %.1f ms, first run %.2f ms, median of %d runs %.2f ms\n", program.compile_ms(), first, runs,
              times[times.size() / 2]);
  std::printf("  temporaries that the plugin plans %.1f MB, memory that a run takes %.1f MB\n",
              program.temporary_bytes() / 1e6, megabytes_of_run(program, results));
  for (size_t i = 0; i < results.size(); ++i) {
    double sum = 0;
    for (size_t j = 0; j < results[i].count(); ++j) {
      sum += results[i].at(j);
    }
    std::printf("  result %zu: %s, sum %.6g\n", i, shape_of(results[i]).c_str(), sum);
  }
  return results;
}

void run(int argc, char** argv) {
  std::vector<std::string> paths;
  std::string input_file;
  int runs = 5;
  double tolerance = INFINITY;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--runs" && i + 1 < argc) {
      runs = std::max(std::atoi(argv[++i]), 1);
    } else if (argument == "--tolerance" && i + 1 < argc) {
      tolerance = std::atof(argv[++i]);
    } else if (argument == "--inputs" && i + 1 < argc) {
      input_file = argv[++i];
    } else {
      paths.push_back(argument);
    }
  }
  if (paths.size() < 2 || paths.size() > 3) {
    throw std::runtime_error("usage: client MODULE PLUGIN [OTHER_PLUGIN] [--runs N] [--inputs FILE] [--tolerance X]");
  }
  const std::string module = read_file(paths[0]);
  std::vector<Tensor> inputs = inputs_of(module);
  const std::string bytes = input_file.empty() ? "" : read_file(input_file);
  std::mt19937 random(1);
  size_t at = 0;
  for (Tensor& input : inputs) {
    draw(input, random);
    if (!input_file.empty()) {
      if (bytes.size() < at + input.bytes.size()) {
        throw std::runtime_error(input_file + " is too short for the module's arguments");
      }
      input.bytes = bytes.substr(at, input.bytes.size());
      at += input.bytes.size();
    }
  }
  const std::vector<Tensor> results = compile_and_run(paths[1], module, inputs, runs);
  if (paths.size() == 3) {
    const std::vector<Tensor> others = compile_and_run(paths[2], module, inputs, runs);
    const double difference = largest_difference(results, others);
    std::printf("largest difference: %.3g\n", difference);
    if (difference > tolerance) {
      throw std::runtime_error("the results differ by more than " + std::to_string(tolerance));
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run(argc, argv);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "client: %s\n", error.what());
    return 1;
  }
}
