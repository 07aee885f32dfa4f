// flashlift draw: draws the mask of one head, and the tiles that a kernel skips or visits.
#include <fmt/format.h>

#include <memory>

#include "cli/command.h"
#include "cli/mask_picture.h"
#include "cli/output.h"
#include "cli/output_file.h"
#include "cli/problem_options.h"
#include "cli/svg.h"
#include "support/error.h"

namespace flashlift::cli {
namespace {

struct Options {
  std::string problem;
  std::string output;
  uint64_t seed = 1;
  PictureOptions picture;
  bool json = false;
};

Status check_range(const char* option, int64_t value, int64_t bound) {
  if (value < 0 || value >= bound) {
    return invalid_argument("{} is {}, the problem has {}: give 0 to {}", option, value, bound, bound - 1);
  }
  return {};
}

Outcome run_draw(const Options& options) {
  FLASHLIFT_ASSIGN_OR_RETURN(const Problem problem, parse_problem(options.problem));
  FLASHLIFT_RETURN_IF_ERROR(check_range("--batch", options.picture.batch, problem.batch));
  FLASHLIFT_RETURN_IF_ERROR(check_range("--head", options.picture.head, problem.q_heads));
  FLASHLIFT_RETURN_IF_ERROR(check_picture_name("-o", options.output));
  FLASHLIFT_ASSIGN_OR_RETURN(const OutputFile output, OutputFile::find("-o", options.output));
  if (options.json && output.is_standard_output()) {
    return invalid_argument("--json prints the counts on standard output, where the picture goes; leave out one");
  }
  FLASHLIFT_ASSIGN_OR_RETURN(const Inputs inputs, Inputs::draw_captures(problem, options.seed));
  FLASHLIFT_ASSIGN_OR_RETURN(const Picture picture,
                             draw_mask(problem, options.problem, inputs.arguments().captures, options.picture));
  const Output written[] = {{output, picture.svg}};
  FLASHLIFT_RETURN_IF_ERROR(write_outputs(written));
  const TileCounts& tiles = picture.tiles;
  if (options.json) {
    print_json({{"problem", options.problem},
                {"output", options.output},
                {"batch", options.picture.batch},
                {"head", options.picture.head},
                {"tiles",
                 {{"q_tile", tiles.q_tile},
                  {"kv_tile", tiles.kv_tile},
                  {"full", tiles.full},
                  {"partial", tiles.partial},
                  {"skipped", tiles.skipped}}}});
    return kSuccess;
  }
  fmt::print(output.is_standard_output() ? stderr : stdout, "{}: {} tiles full, {} partial, {} skipped\n",
             options.output, tiles.full, tiles.partial, tiles.skipped);
  return kSuccess;
}

}  // namespace

void add_draw(CLI::App& app, Outcome& outcome) {
  CLI::App* command = app.add_subcommand("draw", "Draw a problem's mask and its tiles as an SVG picture");
  auto options = std::make_shared<Options>();
  command->add_option("PROBLEM", options->problem, kProblemHelp)->required();
  command->add_option("-o,--output", options->output, "Where the picture goes; - is standard output")->required();
  command->add_option("--batch", options->picture.batch, "Which batch to draw")->option_text("INT [0]");
  command->add_option("--head", options->picture.head, "Which query head to draw")->option_text("INT [0]");
  command->add_option("--q-tile", options->picture.q_tile, "Queries in a tile")
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("INT [128]");
  command->add_option("--kv-tile", options->picture.kv_tile, "Keys in a tile")
      ->check(CLI::Range(1, 1 << 30))
      ->option_text("INT [128]");
  add_seed(*command, options->seed, "Of the captured tensors");
  command->add_flag("--json", options->json, "Print the counts of tiles as one JSON object");
  command->footer(problem_footer());
  command->callback([options, &outcome] { outcome = run_draw(*options); });
}

}  // namespace flashlift::cli
