// flashlift explain: describes what runs for a problem or a module, what does not, and why.
#include <fmt/format.h>

#include <memory>
#include <optional>

#include "cli/command.h"
#include "cli/explain_module.h"
#include "cli/measure.h"
#include "cli/output.h"
#include "cli/problem_options.h"
#include "support/rounding.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::string subject;
  uint64_t seed = 1;
  DeviceOptions device;
  bool code = false;
  bool json = false;
};

bool is_problem(const std::string& subject) { return subject == "attn" || subject.starts_with("attn "); }

Json to_json(const std::vector<Consideration>& considerations) {
  Json list = Json::array();
  for (const Consideration& asked : considerations) {
    list.push_back({{"implementation", asked.implementation}, {"accepted", asked.accepted}, {"reason", asked.reason}});
  }
  return list;
}

Json to_json(const TileCounts& tiles) {
  return {{"q_tile", tiles.q_tile},
          {"kv_tile", tiles.kv_tile},
          {"skipped", tiles.skipped},
          {"full", tiles.full},
          {"partial", tiles.partial}};
}

std::string indented(const std::string& text) {
  std::string result = "  ";
  for (const char c : text) {
    result += c;
    if (c == '\n') {
      result += "  ";
    }
  }
  return result + "\n";
}

void print_problem(const std::string& text, const Problem& p, const Json& result) {
  fmt::print("{}\n", text);
  for (const auto& [name, program] : {std::pair{"score_mod", &p.score_mod}, std::pair{"mask_mod", &p.mask_mod}}) {
    if (*program) {
      fmt::print("\n{}\n{}", name, indented(print(**program)));
    }
  }
  fmt::print("\n");
  Table asked({"pass", "implementation", "", "why"});
  for (const auto& [pass, list] : {std::pair{"forward", "considered"}, std::pair{"backward", "backward_considered"}}) {
    for (const Json& one : result[list]) {
      asked.add({pass, one["implementation"], one["accepted"] ? "chosen" : "rejected", one["reason"]});
    }
  }
  fmt::print("{}", asked.text());
  const Json& tiles = result["tiles"];
  if (tiles.is_null()) {
    fmt::print("\ntiles are not counted: this problem has too many\n");
    return;
  }
  fmt::print("\ntiles of {} queries by {} keys, over all batches and heads\n", tiles["q_tile"].get<int64_t>(),
             tiles["kv_tile"].get<int64_t>());
  Table counts({"skipped", "full", "partial"});
  counts.add({tiles["skipped"].dump(), tiles["full"].dump(), tiles["partial"].dump()});
  fmt::print("{}", counts.text());
}

// The size of tiles to count: 128 by 128, or larger if there would be too many. Nothing if any size has too many.
std::optional<int64_t> countable_tile(const Problem& p) {
  constexpr double kMostSteps = 1 << 30;  // takes a few seconds
  const size_t nodes = (p.mask_mod ? p.mask_mod->nodes.size() : 0) + (p.score_mod ? p.score_mod->nodes.size() : 0);
  for (int64_t tile = 128;; tile *= 2) {
    const int64_t rows = divide_up(p.q_len, tile);
    const int64_t columns = divide_up(p.kv_len, tile);
    const double planes = static_cast<double>(p.batch) * static_cast<double>(p.q_heads);
    if (planes * static_cast<double>(rows) * static_cast<double>(columns) * static_cast<double>(1 + nodes) <=
        kMostSteps) {
      return tile;
    }
    if (rows <= 1 && columns <= 1) {
      return std::nullopt;
    }
  }
}

Outcome explain_problem(const Options& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(options.subject));
  FLASHLIFT_ASSIGN_OR_RETURN(const Inputs inputs, Inputs::draw_captures(problem, options.seed));
  FLASHLIFT_ASSIGN_OR_RETURN(const Attention attention, Attention::compile(problem, options.device.compile_options()));
  Json tiles = nullptr;
  if (const std::optional<int64_t> tile = countable_tile(problem)) {
    FLASHLIFT_ASSIGN_OR_RETURN(const TileCounts counts,
                               count_tiles(problem, inputs.arguments().captures, *tile, *tile));
    tiles = to_json(counts);
  }
  Json result = {{"problem", print(problem)},
                 {"device", options.device.device},
                 {"implementation", attention.implementation()},
                 {"considered", to_json(attention.considerations())},
                 {"backward_considered", to_json(attention.backward_considerations())},
                 {"tiles", tiles}};
  std::string code;
  if (options.code) {
    FLASHLIFT_ASSIGN_OR_RETURN(code, attention.code());
  }
  if (options.json) {
    if (options.code) {
      result["code"] = code;
    }
    print_json(result);
    return kSuccess;
  }
  print_problem(options.subject, problem, result);
  if (options.code) {
    fmt::print("\n{}\n", code);
  }
  return kSuccess;
}

}  // namespace

void add_explain(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("explain", "Say what is chosen for a problem or found in a module, and why");
  auto options = std::make_shared<Options>();
  command
      ->add_option("SUBJECT", options->subject,
                   "A problem (see below) or the file name of a StableHLO module; - is standard input")
      ->required();
  command->add_flag("--code", options->code, "Of a problem: print the generated code too");
  options->device.add_to(*command);
  add_seed(*command, options->seed, "Of the captured tensors");
  command->add_flag("--json", options->json, "Print one JSON object");
  command->footer(problem_footer());
  command->callback([options, &outcome] {
    outcome = is_problem(options->subject) ? explain_problem(*options)
                                           : explain_module(options->subject, options->code, options->json);
  });
}

}  // namespace flashlift::cli
