// flashlift.h: tuning.
#include "flashlift/tune.h"

#include <memory>
#include <string>

#include "capi/dlpack.h"
#include "capi/error.h"
#include "capi/tune.h"
#include "support/error.h"
#include "tuning/tuned_json.h"

struct FlashliftTuned {
  std::string json;
};

namespace flashlift::capi {
namespace {

Result<TuneOptions> read_options(const FlashliftTuneOptions* given) {
  FlashliftTuneOptions read;
  FLASHLIFT_RETURN_IF_ERROR(read_struct(given, "FlashliftTuneOptions", read));
  TuneOptions options;
  FLASHLIFT_ASSIGN_OR_RETURN(options.device, to_device_kind(read.device));
  options.device_ordinal = read.device.device_id;
  options.backward = read.backward != 0;
  options.heads_inside = read.heads_inside != 0;
  options.seconds = read.seconds == 0 ? options.seconds : read.seconds;
  FLASHLIFT_ASSIGN_OR_RETURN(options.policy, to_policy(read.tuning_policy));
  if (read.on_progress != nullptr) {
    options.on_progress = [read](double done, int left) { return read.on_progress(read.context, done, left) == 0; };
  }
  return options;
}

Status run(const char* problem, const FlashliftTuneOptions* given, FlashliftTuned** result) {
  if (result != nullptr) {
    *result = nullptr;
  }
  if (problem == nullptr) {
    return invalid_argument("flashlift_tune: problem must not be NULL");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const TuneOptions options, read_options(given));
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem parsed, parse_problem(problem));
  FLASHLIFT_ASSIGN_OR_RETURN(const Tuned tuned, tune(parsed, options));
  if (result != nullptr) {
    *result =
        std::make_unique<FlashliftTuned>(FlashliftTuned{tuning::to_json(problem, options.backward, tuned)}).release();
  }
  return {};
}

}  // namespace

Result<TuningPolicy> to_policy(int32_t policy) {
  if (policy < 0 || policy > static_cast<int32_t>(TuningPolicy::kWrite)) {
    return invalid_argument("the tuning policy is {}; expected one of FlashliftTuningPolicy, 0 to {}", policy,
                            static_cast<int32_t>(TuningPolicy::kWrite));
  }
  return static_cast<TuningPolicy>(policy);
}

}  // namespace flashlift::capi

extern "C" {

FlashliftError* flashlift_tune(const char* problem, const FlashliftTuneOptions* options, FlashliftTuned** result) {
  return flashlift::capi::guarded([&] { return flashlift::capi::run(problem, options, result); });
}

void flashlift_tuned_destroy(FlashliftTuned* tuned) { delete tuned; }

const char* flashlift_tuned_json(const FlashliftTuned* tuned) { return tuned == nullptr ? "" : tuned->json.c_str(); }

}  // extern "C"
