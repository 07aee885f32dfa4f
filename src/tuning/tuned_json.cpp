#include "tuning/tuned_json.h"

#include <nlohmann/json.hpp>

namespace flashlift::tuning {
namespace {

using Json = nlohmann::ordered_json;

Json object_of(const Tuning& tuning) {
  return {{"implementation", tuning.implementation.empty() ? Json(nullptr) : Json(tuning.implementation)},
          {"q_tile", tuning.q_tile},
          {"kv_tile", tuning.kv_tile},
          {"splits", tuning.splits},
          {"threads", tuning.threads}};
}

}  // namespace

std::string to_json(const std::string& problem, bool backward, const Tuned& tuned) {
  Json candidates = Json::array();
  for (const TuneCandidate& one : tuned.candidates) {
    Json candidate = object_of(one.tuning);
    candidate["ms"] = one.failure.empty() ? Json(one.ms) : Json(nullptr);
    candidate["calls"] = one.calls;
    candidate["failure"] = one.failure.empty() ? Json(nullptr) : Json(one.failure);
    candidates.push_back(std::move(candidate));
  }
  const Json object = {{"problem", problem},
                       {"device", tuned.device},
                       {"direction", backward ? "backward" : "forward"},
                       {"best", object_of(tuned.best)},
                       {"ms", tuned.ms},
                       {"heuristics_ms", tuned.heuristics_ms},
                       {"from_database", tuned.from_database},
                       {"stored", tuned.stored},
                       {"candidates", std::move(candidates)}};
  return object.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace flashlift::tuning
