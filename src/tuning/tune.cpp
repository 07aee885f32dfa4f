#include "flashlift/tune.h"

#include <algorithm>
#include <chrono>
#include <optional>
#include <tuple>

#include "database/tuning_database.h"
#include "runtime/tuning_device.h"
#include "runtime/verify_options.h"
#include "support/environment.h"
#include "support/error.h"
#include "tuning/inputs.h"
#include "tuning/target.h"
#ifdef FLASHLIFT_HAS_CPU
#include "plan/cpu_variants.h"
#include "runtime/tbb_executor.h"
#endif

namespace flashlift {
namespace {

using Clock = std::chrono::steady_clock;

// A candidate must be faster than the heuristics by at least this much: smaller differences may be chance.
constexpr double kLeastGain = 0.02;
// Implementations that are slower than the fastest one by this factor are not varied.
constexpr double kWorthVarying = 1.5;
// A measurement takes at least this long, so that the clock's resolution does not matter.
constexpr double kTurnMs = 1;
constexpr int kMostCallsOfATurn = 64;
// The factors by which a candidate may be slower than the fastest one after the first, second, ... turn; the last
// factor applies to all later turns. Slower candidates are dropped. After all turns, medians decide.
constexpr double kMayBeSlower[] = {1.5, 1.3, 1.2, 1.15, 1.1};
// At least this many are kept to the end: on a busy machine, a few calls mean little.
constexpr size_t kLeastRunners = 6;
constexpr int kMostTurns = 200;
constexpr int kLastTurns = 9;
// Tried of each implementation, however short the time is.
constexpr int kLeastVariants = 4;

double milliseconds_since(Clock::time_point start) {
  return std::chrono::duration<double, std::milli>(Clock::now() - start).count();
}

double median(std::vector<double> times) {
  std::nth_element(times.begin(), times.begin() + static_cast<int64_t>(times.size() / 2), times.end());
  return times[times.size() / 2];
}

class Tuner {
 public:
  Tuner(const Problem& problem, const TuneOptions& options, tuning::Target& target)
      : problem_(problem), options_(options), target_(target) {}

  Status run() {
    FLASHLIFT_RETURN_IF_ERROR(add({}));  // must run: its error is an error of tuning
    if (!runners_.front().attention) {
      return *failed_;
    }
    const std::string own = own_implementation();
    std::vector<std::string> names = runtime::implementations_by_name(problem_, compile_options({}), options_.backward);
    for (const std::string& name : names) {
      if (name != own) {
        FLASHLIFT_RETURN_IF_ERROR(add({.implementation = name}));
      }
    }
    FLASHLIFT_RETURN_IF_ERROR(take_turn());
    const std::vector<TuneCandidate> implementations = candidates_;
    const double fastest = implementations[best()].ms;
    for (const TuneCandidate& one : implementations) {
      if (one.failure.empty() && one.ms <= kWorthVarying * fastest) {
        FLASHLIFT_RETURN_IF_ERROR(add_variants(one.tuning.implementation.empty() ? own : one.tuning.implementation));
      }
    }
    for (int turn = 0; turn < kMostTurns && (turn < 2 || !is_over()) && left() > 1; ++turn) {
      FLASHLIFT_RETURN_IF_ERROR(take_turn());
      drop_slow(turn);
    }
    return compare_best();
  }

  size_t best() const {
    size_t found = 0;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (runners_[i].attention && candidates_[i].ms < candidates_[found].ms) {
        found = i;
      }
    }
    return found;
  }

  const std::vector<TuneCandidate>& candidates() const { return candidates_; }

 private:
  // A candidate that is still measured, and the times of its turns.
  struct Runner {
    std::optional<Attention> attention;
    std::vector<double> times;
  };

  CompileOptions compile_options(const Tuning& tuning) const {
    CompileOptions options{.device = options_.device, .device_ordinal = options_.device_ordinal};
    (options_.backward ? options.backward : options.forward) = tuning;
    options.tuning = TuningPolicy::kOff;
    return options;
  }

  // A candidate that fails is recorded as failed; only cancelling ends the tuning.
  Status add(const Tuning& tuning) {
    candidates_.push_back({.tuning = tuning});
    Result<Attention> attention = Attention::compile(problem_, compile_options(tuning));
    runners_.push_back({attention.ok() ? std::optional(*attention) : std::nullopt, {}});
    Status status = attention.ok() ? Status() : Status(attention.error());
    if (status.ok()) {
      const Result<double> first = target_.time(*attention);  // memory, code and caches are warm after it
      status = first.ok() ? Status() : Status(first.error());
    }
    if (!status.ok()) {
      candidates_.back().failure = status.error().message;
      runners_.back().attention.reset();
      failed_ = status.error();
    }
    return tell();
  }

  Status add_variants([[maybe_unused]] const std::string& implementation) {
#ifdef FLASHLIFT_HAS_CPU
    if (options_.device == DeviceKind::kCpu) {
      int tried = 0;
      for (const Tuning& variant :
           plan::cpu_variants(problem_, options_.backward, implementation, runtime::default_executor().concurrency())) {
        if (tried++ >= kLeastVariants && is_over()) {
          break;  // the first variants differ in one size only
        }
        FLASHLIFT_RETURN_IF_ERROR(add(variant));
      }
    }
#endif
    return {};
  }

  std::string own_implementation() const {
    const Attention& own = *runners_.front().attention;
    const auto& considered = options_.backward ? own.backward_considerations() : own.considerations();
    return considered.empty() ? own.implementation() : considered.back().implementation;
  }

  // Measures each remaining candidate once, one after the other, so that a disturbance of the machine affects all.
  Status take_turn() {
    for (size_t i = 0; i < candidates_.size(); ++i) {
      Runner& runner = runners_[i];
      if (!runner.attention) {
        continue;
      }
      const int calls =
          candidates_[i].ms > 0 ? std::clamp(static_cast<int>(kTurnMs / candidates_[i].ms), 1, kMostCallsOfATurn) : 1;
      double total = 0;
      for (int call = 0; call < calls; ++call) {
        FLASHLIFT_ASSIGN_OR_RETURN(const double ms, target_.time(*runner.attention));
        total += ms;
      }
      runner.times.push_back(total / calls);
      candidates_[i].ms = median(runner.times);
      candidates_[i].calls += calls;
      FLASHLIFT_RETURN_IF_ERROR(tell());
    }
    return {};
  }

  // The fastest of many candidates is partly the luckiest one. It is therefore measured again, against the heuristics
  // alone.
  Status compare_best() {
    const size_t found = best();
    for (size_t i = 0; i < runners_.size(); ++i) {
      if (i != 0 && i != found) {
        runners_[i].attention.reset();
      } else {
        runners_[i].times.clear();
      }
    }
    for (int turn = 0; turn < kLastTurns && left() > 1; ++turn) {
      FLASHLIFT_RETURN_IF_ERROR(take_turn());
    }
    return {};
  }

  // The heuristics are never dropped, because the winner must beat them.
  void drop_slow(int turn) {
    std::vector<double> in_race;
    for (size_t i = 0; i < candidates_.size(); ++i) {
      if (runners_[i].attention) {
        in_race.push_back(candidates_[i].ms);
      }
    }
    std::ranges::sort(in_race);
    const double factor = kMayBeSlower[std::min<size_t>(static_cast<size_t>(turn), std::size(kMayBeSlower) - 1)];
    const double allowed = std::max(factor * in_race.front(), in_race[std::min(kLeastRunners, in_race.size()) - 1]);
    for (size_t i = 1; i < candidates_.size(); ++i) {
      if (candidates_[i].ms > allowed) {
        runners_[i].attention.reset();
      }
    }
  }

  int left() const {
    return static_cast<int>(
        std::ranges::count_if(runners_, [](const Runner& one) { return one.attention.has_value(); }));
  }
  bool is_over() const { return milliseconds_since(start_) >= options_.seconds * 1e3; }

  Status tell() const {
    const double done = options_.seconds > 0 ? std::min(1.0, milliseconds_since(start_) / (options_.seconds * 1e3)) : 1;
    if (options_.on_progress && !options_.on_progress(done, left())) {
      return cancelled();
    }
    return {};
  }

  const Problem& problem_;
  const TuneOptions& options_;
  tuning::Target& target_;
  const Clock::time_point start_ = Clock::now();
  std::vector<TuneCandidate> candidates_;  // the first is that of the heuristics
  std::vector<Runner> runners_;            // of each candidate
  std::optional<Error> failed_;
};

}  // namespace

Result<Tuned> tune(const Problem& problem, const TuneOptions& options) {
  FLASHLIFT_RETURN_IF_ERROR(check_environment());
  FLASHLIFT_RETURN_IF_ERROR(runtime::verify_options(options.device, options.device_ordinal, options.policy));
  FLASHLIFT_RETURN_IF_ERROR(verify(problem));
  if (!(options.seconds >= 0)) {
    return invalid_argument("seconds are {}; expected 0 or more", options.seconds);
  }
  const TuningPolicy policy = database::effective(options.policy);
  Tuned tuned;
  FLASHLIFT_ASSIGN_OR_RETURN(tuned.device, runtime::tuning_device(options.device, options.device_ordinal));
  if (policy == TuningPolicy::kRead) {
    if (const auto found = database::find_tuned(tuned.device, options.backward, problem, true)) {
      tuned.best = found->tuning;
      tuned.ms = found->ms;
      tuned.heuristics_ms = found->heuristics_ms;
      tuned.from_database = true;
      return tuned;
    }
  }
  database::TunedEntry entry = database::make_entry(tuned.device, options.backward, problem);
  if (policy == TuningPolicy::kWrite) {
    FLASHLIFT_RETURN_IF_ERROR(database::prepare_to_store(entry));
  }
  const tuning::Layout layout = options.heads_inside ? tuning::Layout::kBshd : tuning::Layout::kBhsd;
  FLASHLIFT_ASSIGN_OR_RETURN(tuning::Inputs inputs, tuning::Inputs::draw(problem, 1, layout));
  if (options.backward) {
    FLASHLIFT_RETURN_IF_ERROR(inputs.add_gradients(problem, 1));
  }
  FLASHLIFT_ASSIGN_OR_RETURN(
      const auto target,
      tuning::Target::create({.device = options.device, .device_ordinal = options.device_ordinal, .implementation = ""},
                             inputs));
  Tuner tuner(problem, options, *target);
  FLASHLIFT_RETURN_IF_ERROR(tuner.run());
  const TuneCandidate& best = tuner.candidates()[tuner.best()];
  tuned.candidates = tuner.candidates();
  tuned.heuristics_ms = tuned.candidates.front().ms;
  const bool gains = best.ms < (1 - kLeastGain) * tuned.heuristics_ms;
  tuned.best = gains ? best.tuning : Tuning{};
  tuned.ms = gains ? best.ms : tuned.heuristics_ms;
  std::ranges::stable_sort(tuned.candidates, {},
                           [](const TuneCandidate& one) { return std::tuple(!one.failure.empty(), one.ms); });
  if (policy == TuningPolicy::kWrite) {
    entry.tuning = tuned.best;
    entry.ms = tuned.ms;
    entry.heuristics_ms = tuned.heuristics_ms;
    FLASHLIFT_RETURN_IF_ERROR(database::store_tuned({entry}));
    tuned.stored = true;
  }
  return tuned;
}

}  // namespace flashlift
