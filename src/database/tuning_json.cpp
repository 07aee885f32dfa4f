// Tuning results as JSON, for use on other machines of the same kind.
#include <nlohmann/json.hpp>

#include "database/tuning_database.h"
#include "support/environment.h"
#include "support/error.h"

namespace flashlift::database {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMostTextBytes = size_t{32} << 20;
constexpr int kMostDepth = 8;  // three are needed

// Whether lists and objects are nested more deeply. The JSON library's copy functions recurse to this depth.
bool nests_deeper(std::string_view text, int most) {
  int depth = 0;
  bool is_quoted = false;
  for (size_t i = 0; i < text.size() && depth <= most; ++i) {
    if (is_quoted) {
      is_quoted = text[i] != '"';
      i += text[i] == '\\' ? 1 : 0;
    } else {
      is_quoted = text[i] == '"';
      depth += text[i] == '[' || text[i] == '{' ? 1 : text[i] == ']' || text[i] == '}' ? -1 : 0;
    }
  }
  return depth > most;
}

Json to_object(const TunedEntry& e) {
  return {{"version", e.version},
          {"device", e.device},
          {"direction", e.backward ? "backward" : "forward"},
          {"problem", e.problem},
          {"batch", e.batch},
          {"q_len", e.q_len},
          {"kv_len", e.kv_len},
          {"implementation", e.tuning.implementation},
          {"q_tile", e.tuning.q_tile},
          {"kv_tile", e.tuning.kv_tile},
          {"splits", e.tuning.splits},
          {"threads", e.tuning.threads},
          {"ms", e.ms},
          {"heuristics_ms", e.heuristics_ms},
          {"tuned_at", e.tuned_at}};
}

// The value as text for an error message.
std::string short_text(const Json& value) {
  constexpr size_t kMost = 60;
  if (value.is_structured()) {
    return value.is_array() ? "a list" : "an object";
  }
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true);  // ASCII only, so that it may be cut anywhere
  if (text.size() > kMost) {
    text.resize(kMost);
    text += "...";
  }
  return text;
}

// Reads the fields of one object, and remembers the first error.
class Fields {
 public:
  explicit Fields(const Json& object) : object_(object) {}

  std::string text(const char* name) {
    const Json* field = find(name);
    return field != nullptr && expect(field->is_string(), name, "a text") ? field->get<std::string>() : "";
  }
  int64_t integer(const char* name, int64_t most = INT64_MAX) {
    const Json* field = find(name);
    const bool is_right =
        field != nullptr && field->is_number_integer() && field->get<int64_t>() >= 0 && field->get<int64_t>() <= most;
    return field != nullptr && expect(is_right, name, fmt::format("a whole number from 0 to {}", most))
               ? field->get<int64_t>()
               : 0;
  }
  double real(const char* name) {
    const Json* field = find(name);
    return field != nullptr && expect(field->is_number(), name, "a number") ? field->get<double>() : 0;
  }
  const std::string& wrong() const { return wrong_; }
  bool expect(bool is_right, const char* name, const std::string& expected) {
    if (!is_right && wrong_.empty()) {
      wrong_ = fmt::format("\"{}\" is {}; expected {}", name, short_text(object_[name]), expected);
    }
    return is_right;
  }

 private:
  const Json* find(const char* name) {
    const auto found = object_.find(name);
    if (found == object_.end() && wrong_.empty()) {
      wrong_ = fmt::format("\"{}\" is missing", name);
    }
    return found == object_.end() ? nullptr : &*found;
  }

  const Json& object_;
  std::string wrong_;
};

}  // namespace

std::string to_json(const std::vector<TunedEntry>& entries) {
  Json list = Json::array();
  for (const TunedEntry& entry : entries) {
    list.push_back(to_object(entry));
  }
  return Json{{"flashlift_tuned", list}}.dump(2, ' ', false, Json::error_handler_t::replace);
}

Result<std::vector<TunedEntry>> from_json(const std::string& text) {
  if (text.size() > kMostTextBytes) {
    return invalid_argument("got {} bytes; expected the output of `flashlift cache export`, at most {} bytes",
                            text.size(), kMostTextBytes);
  }
  const Json json = nests_deeper(text, kMostDepth) ? Json() : Json::parse(text, nullptr, false);
  if (!json.is_object() || !json.contains("flashlift_tuned") || !json["flashlift_tuned"].is_array()) {
    return invalid_argument(
        "expected a JSON object with a list \"flashlift_tuned\", as `flashlift cache export` writes");
  }
  std::vector<TunedEntry> entries;
  for (const Json& object : json["flashlift_tuned"]) {
    if (!object.is_object()) {
      return invalid_argument("entry {}: expected an object", entries.size());
    }
    Fields fields(object);
    const std::string direction = fields.text("direction");
    fields.expect(direction == "forward" || direction == "backward", "direction", "forward or backward");
    entries.push_back({.version = fields.text("version"),
                       .device = fields.text("device"),
                       .backward = direction == "backward",
                       .problem = fields.text("problem"),
                       .batch = fields.integer("batch"),
                       .q_len = fields.integer("q_len"),
                       .kv_len = fields.integer("kv_len"),
                       .tuning = {.implementation = fields.text("implementation"),
                                  .q_tile = fields.integer("q_tile"),
                                  .kv_tile = fields.integer("kv_tile"),
                                  .splits = fields.integer("splits"),
                                  .threads = static_cast<int>(fields.integer("threads", kMostThreads))},
                       .ms = fields.real("ms"),
                       .heuristics_ms = fields.real("heuristics_ms"),
                       .tuned_at = fields.integer("tuned_at")});
    if (!fields.wrong().empty()) {
      return invalid_argument("entry {}: {}", entries.size() - 1, fields.wrong());
    }
  }
  return entries;
}

}  // namespace flashlift::database
