#include <nlohmann/json.hpp>

#include "flashlift/stablehlo.h"

namespace flashlift::stablehlo {

std::string report_json(const FuseResult& result) {
  nlohmann::ordered_json candidates = nlohmann::ordered_json::array();
  for (const Candidate& candidate : result.candidates) {
    nlohmann::ordered_json entry = {{"location", candidate.location},
                                    {"function", candidate.function},
                                    {"fused", candidate.fused},
                                    {"reason", candidate.reason}};
    if (candidate.fused) {
      entry["problem"] = candidate.problem;
      entry["score_mod"] = candidate.score_mod;
      entry["mask_mod"] = candidate.mask_mod;
    }
    candidates.push_back(std::move(entry));
  }
  // Names of functions and files may be invalid UTF-8.
  return candidates.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace flashlift::stablehlo
