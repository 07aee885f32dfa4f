#include "xla/pjrt/rewrite.h"

#include <fcntl.h>

#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>
#include <system_error>

#include "support/counted.h"
#include "support/environment.h"
#include "support/error.h"
#include "support/files.h"
#include "support/log.h"
#include "xla/pjrt/libraries.h"
#include "xla/pjrt/screen.h"

namespace flashlift::pjrt {
namespace {

// The reason in one line, with the place: modules in bytecode have no name here. The report has all candidates.
std::string why_none(const std::string& candidates) {
  const nlohmann::json all = nlohmann::json::parse(candidates, nullptr, /*allow_exceptions=*/false);
  if (!all.is_array() || all.empty()) {
    return "no attention was found";
  }
  const std::string reason = fmt::format("{} (at {})", all[0].value("reason", ""), all[0].value("location", ""));
  return all.size() == 1 ? reason
                         : fmt::format("none of {} candidates could be fused; the first: {}", all.size(), reason);
}

// An error means that the program is passed on unchanged.
Status fuse(std::string_view module, int64_t partitions, Rewritten& rewritten) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Fuser* fuser, load_fuser());
  FlashliftFuseOptions options = {};
  options.struct_size = sizeof(options);
  options.as = FLASHLIFT_CUSTOM_CALL;
  options.gradients = 1;
  // Text, because plugins of any StableHLO version read it, whatever version the module has. Older versions of bytecode
  // cannot express the attributes of a fused call.
  options.emit = "text";
  options.partitions = partitions;
  options.skip_unchanged = 1;
  FlashliftFused* fused = nullptr;
  if (FlashliftError* error = fuser->fuse(module.data(), module.size(), &options, &fused); error != nullptr) {
    const std::unique_ptr<FlashliftError, decltype(fuser->error_destroy)> owner(error, fuser->error_destroy);
    return unsupported("{}", fuser->error_message(error));
  }
  rewritten.owner = std::shared_ptr<FlashliftFused>(fused, fuser->destroy);
  Report& report = rewritten.report;
  report.fused = fuser->count(fused);
  report.candidates = fuser->report(fused);
  if (report.fused == 0) {
    return unsupported("{}", why_none(report.candidates));
  }
  size_t size = 0;
  const char* code = fuser->module(fused, &size);
  rewritten.code = {code, size};
  if (report.module.empty()) {  // the program was bytecode
    report.module = name_of(rewritten.code);
  }
  return {};
}

Status try_to_rewrite(const Program& program, std::string_view options, Rewritten& rewritten) {
  Report& report = rewritten.report;
  const std::string_view module(program.code, program.code_size);
  const std::string_view format(program.format, program.format_size);
  report.form = format == "mlir" ? form_of(module) : std::string(format);
  report.bytes = module.size();
  report.module = name_of(module);
  if (format != "mlir") {
    return unsupported("programs in this format are not read");
  }
  if (report.platform != "cpu" && report.platform != "cuda") {
    return unsupported("Flashlift has no kernels for platform '{}'", report.platform);
  }
  if (!may_hold_attention(module)) {
    return unsupported("no attention was found");
  }
  const int64_t partitions = partition_count(options);
  if (partitions == 0) {
    return unsupported("its compile options cannot be read, so that it is unknown whether it is partitioned");
  }
  return fuse(module, partitions, rewritten);
}

std::string first_line(const std::string& text) { return text.substr(0, text.find('\n')); }

nlohmann::json to_json(const Report& report) {
  nlohmann::json json = {{"module", report.module},         {"form", report.form},
                         {"bytes", report.bytes},           {"platform", report.platform},
                         {"fused", report.fused},           {"reason", report.reason},
                         {"fuse_ms", report.fuse_ms},       {"failed", report.failed},
                         {"compile_ms", report.compile_ms}, {"candidates", nlohmann::json::array()}};
  if (!report.candidates.empty()) {
    json["candidates"] = nlohmann::json::parse(report.candidates, nullptr, /*allow_exceptions=*/false);
  }
  return json;
}

// A single write, so that lines of several processes are not mixed. Does not wait for the reader of a pipe.
void append_line(const std::string& path, std::string line) {
  line += '\n';
  const Descriptor file(open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK, 0666));
  const std::error_code failed = file.is_open() ? write_fully(file, line) : last_error();
  if (failed) {
    log(LogLevel::kWarning, "FLASHLIFT_PJRT_REPORT: {} cannot be written: {}", path, failed.message());
  }
}

}  // namespace

Rewritten rewrite(const Program& program, std::string_view options, std::string_view platform) {
  const auto begin = std::chrono::steady_clock::now();
  Rewritten rewritten;
  rewritten.report.platform = platform;
  if (const Status status = try_to_rewrite(program, options, rewritten); !status) {
    rewritten.report.reason = status.error().message;
  }
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin;
  rewritten.report.fuse_ms = took.count();
  return rewritten;
}

void publish(const Report& report) {
  if (log_enabled(LogLevel::kInfo)) {
    log(LogLevel::kInfo, "pjrt: module {} ({} bytes of {}, for {}): {}; fusing {:.1f} ms, compiling {:.1f} ms{}",
        report.module.empty() ? "?" : report.module, report.bytes, report.form, report.platform,
        report.reason.empty() ? counted(report.fused, "attention") + " fused"
                              : "left as it came: " + first_line(report.reason),
        report.fuse_ms, report.compile_ms, report.failed ? ", which failed" : "");
  }
  if (const auto path = environment_value(EnvironmentVariable::kPjrtReport)) {
    using Json = nlohmann::json;
    append_line(std::string(*path), to_json(report).dump(-1, ' ', false, Json::error_handler_t::replace));
  }
}

}  // namespace flashlift::pjrt
