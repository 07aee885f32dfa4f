// libflashlift_pjrt: a PJRT plugin that wraps another one and fuses modules before that compiles them.
//
// GetPjrtApi() returns a copy of the wrapped plugin's table of functions with four of them replaced. All other
// functions and all objects are those of the wrapped plugin.
#include <chrono>
#include <cstring>
#include <mutex>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "support/error.h"
#include "support/lazy.h"
#include "support/log.h"
#include "support/version.h"
#include "xla/pjrt/failing_api.h"
#include "xla/pjrt/libraries.h"
#include "xla/pjrt/rewrite.h"

namespace flashlift::pjrt {
namespace {

// Set once, before any client has the table of functions.
const Api* wrapped = nullptr;

// Runs work whose failure must not prevent a program from being compiled.
template <typename Work>
void guarded(const Work& work) noexcept {
  try {
    work();
  } catch (...) {
    log_message(LogLevel::kError, "pjrt: memory ran out, or a defect of Flashlift; the plugin goes on without");
  }
}

std::string platform_name(Slot slot, const void* object) {
  const Function get_name = function_of(*wrapped, slot);
  if (get_name == nullptr) {
    return "";
  }
  PlatformArgs args = {{sizeof(PlatformArgs), nullptr}, const_cast<void*>(object), nullptr, 0};
  if (PluginError* error = get_name(&args); error != nullptr) {
    return take_message(*wrapped, error);
  }
  return text_of(args.text, args.size);
}

// A copy of the client's program with other code. Its structure may have more fields than are known here.
class ProgramCopy {
 public:
  ProgramCopy(const Program& original, std::string_view code) : bytes_(original.struct_size) {
    std::memcpy(bytes_.data(), &original, original.struct_size);
    get()->code = code.data();
    get()->code_size = code.size();
  }
  Program* get() { return reinterpret_cast<Program*>(bytes_.data()); }

 private:
  std::vector<std::byte> bytes_;
};

template <typename Args>
bool is_readable(const Args& args) {
  constexpr size_t kMostBytes = 4096;
  const Program* program = args.program;
  return args.struct_size >= sizeof(Args) && program != nullptr && program->struct_size >= sizeof(Program) &&
         program->struct_size <= kMostBytes && program->code != nullptr && program->format != nullptr &&
         (args.options != nullptr || args.options_size == 0);
}

// If anything fails here, even if memory runs out, the client's own program is compiled, and only once.
template <typename Args>
PluginError* compile(Slot slot, Args& args, Slot platform_slot, const void* platform_of) {
  if (!is_readable(args)) {
    return wrapped->functions[slot](&args);
  }
  Rewritten rewritten;
  std::optional<ProgramCopy> ours;
  guarded([&] {
    rewritten = rewrite(*args.program, {args.options, args.options_size}, platform_name(platform_slot, platform_of));
    if (!rewritten.code.empty()) {
      ours.emplace(*args.program, rewritten.code);
    }
  });
  const auto begin = std::chrono::steady_clock::now();
  PluginError* error = nullptr;
  bool is_compiled = false;
  if (ours) {
    // Changes `args` in place, because it may have further fields that are not known here, and because it returns the
    // results.
    const Program* const theirs = args.program;
    args.program = ours->get();
    bool has_thrown = false;
    try {
      error = wrapped->functions[slot](&args);
    } catch (...) {
      has_thrown = true;
    }
    args.program = theirs;
    is_compiled = error == nullptr && !has_thrown;
    if (!is_compiled) {
      guarded([&] {
        rewritten.report.reason = has_thrown ? "fused, the plugin throws an exception"
                                             : "fused, it does not compile: " + take_message(*wrapped, error);
      });
      rewritten.report.fused = 0;
    }
  }
  if (!is_compiled) {
    error = wrapped->functions[slot](&args);
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  rewritten.report.compile_ms = took.count();
  rewritten.report.failed = error != nullptr;
  guarded([&] { publish(rewritten.report); });
  return error;
}

PluginError* client_compile(void* args) {
  auto* compile_args = static_cast<ClientCompileArgs*>(args);
  return compile(kClientCompile, *compile_args, kClientPlatformName, compile_args->client);
}

PluginError* topology_compile(void* args) {
  auto* compile_args = static_cast<CompileArgs*>(args);
  return compile(kCompile, *compile_args, kTopologyPlatformName, compile_args->topology);
}

// A client's cache identifies executables by the program that it sent and by this version. The version therefore
// differs from the wrapped plugin's: executables made here must not be confused with unfused ones, nor be used where
// the handlers are not registered.
template <Slot kSlot>
PluginError* platform_version(void* args) {
  auto* version = static_cast<PlatformArgs*>(args);
  PluginError* error = wrapped->functions[kSlot](args);
  if (error != nullptr) {
    return error;
  }
  guarded([&] {
    static constinit std::mutex mutex;
    static constinit Lazy<std::set<std::string>> versions;  // there are few
    const std::lock_guard lock(mutex);
    const std::string theirs = text_of(version->text, version->size);
    const std::string& text = *versions.get([] { return std::set<std::string>(); })
                                   .insert(fmt::format("{}\nflashlift {}", theirs, flashlift::version()))
                                   .first;
    version->text = text.data();
    version->size = text.size();
  });
  return nullptr;
}

// Sets a flag during its lifetime.
class Flag {
 public:
  explicit Flag(bool& flag) : flag_(flag) { flag_ = true; }
  ~Flag() { flag_ = false; }
  Flag(const Flag&) = delete;
  Flag& operator=(const Flag&) = delete;

 private:
  bool& flag_;
};

bool is_old_or_alien(const Version& version) {
  return version.major_version != kMajorVersion || version.minor_version < kOldestMinorVersion;
}

const Api* fail(const Error& error) {
  log(LogLevel::kError, "pjrt: {}", error.message);
  return make_failing_api("Flashlift's PJRT plugin: " + error.message);
}

const Api* wrap() {
  const Result<WrappedPlugin> plugin = load_wrapped_plugin();
  if (!plugin) {
    return fail(plugin.error());
  }
  // Flashlift's own libraries are a part of the plugin: it never works without them, whatever it wraps.
  const Result<Handlers> handlers = load_handlers();
  if (!handlers) {
    return fail(handlers.error());
  }
  const Api& api = *plugin->api;
  if (is_old_or_alien(api.version)) {
    log(LogLevel::kError,
        "pjrt: {} has version {}.{} of PJRT's C interface; expected {}.{} or a later {}.x: nothing is fused",
        plugin->path, api.version.major_version, api.version.minor_version, kMajorVersion, kOldestMinorVersion,
        kMajorVersion);
    return &api;
  }
  if (const char* message = handlers->register_all(&api); message != nullptr) {
    log(LogLevel::kError, "pjrt: nothing is fused, since the handlers cannot be registered with {}: {}", plugin->path,
        message);
    return &api;
  }
  // Copies the table with its own size, which may exceed that of the version known here, so that clients see all
  // functions of the wrapped plugin.
  auto* copy = static_cast<Api*>(operator new(api.struct_size));
  std::memcpy(copy, &api, api.struct_size);
  const auto replace = [&](Slot slot, Function function) {
    if (function_of(api, slot) != nullptr) {
      copy->functions[slot] = function;
    }
  };
  replace(kClientCompile, client_compile);
  replace(kCompile, topology_compile);
  replace(kClientPlatformVersion, platform_version<kClientPlatformVersion>);
  replace(kTopologyPlatformVersion, platform_version<kTopologyPlatformVersion>);
  wrapped = &api;
  log(LogLevel::kInfo, "pjrt: wraps {}, PJRT {}.{}", plugin->path, api.version.major_version,
      api.version.minor_version);
  return copy;
}

}  // namespace
}  // namespace flashlift::pjrt

// NOLINTNEXTLINE(readability-identifier-naming): the name is part of PJRT's interface
extern "C" __attribute__((visibility("default"))) const flashlift::pjrt::Api* GetPjrtApi() {
  static thread_local bool is_wrapping = false;
  if (is_wrapping) {
    flashlift::log_message(flashlift::LogLevel::kError,
                           "pjrt: the plugin to wrap wraps this library; set FLASHLIFT_PJRT_PLUGIN to what it wraps");
    return nullptr;
  }
  try {
    // No Lazy: loading a plugin may start processes by fork(), which would wait for this thread.
    static constinit std::mutex mutex;
    static constinit const flashlift::pjrt::Api* api = nullptr;
    const std::lock_guard lock(mutex);
    if (api == nullptr) {
      const flashlift::pjrt::Flag wrapping(is_wrapping);
      api = flashlift::pjrt::wrap();
    }
    return api;
  } catch (const std::exception& error) {
    flashlift::log(flashlift::LogLevel::kError, "pjrt: {}", error.what());
  } catch (...) {  // the wrapped plugin threw an exception
    flashlift::log_message(flashlift::LogLevel::kError, "pjrt: the plugin to wrap threw an exception");
  }
  return nullptr;
}
