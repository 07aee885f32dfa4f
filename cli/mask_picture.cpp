#include "cli/mask_picture.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "cli/svg.h"
#include "problem/bound_problem.h"
#include "score/interpret.h"
#include "support/error.h"
#include "support/rounding.h"
#include "visits/visits.h"

namespace flashlift::cli {
namespace {

constexpr double kPanelWidth = 480;
constexpr double kMargin = 48;
constexpr double kGap = 64;
constexpr int64_t kMostCells = 240;     // of the left panel, along each side
constexpr int64_t kSamplesPerCell = 4;  // along each side
constexpr int kShades = 5;
constexpr int64_t kMostTiles = 2048 * 2048;

constexpr const char* kTileColors[] = {"#eceff3", "#3b75af", "#ef9f3c"};  // skipped, full, partial
constexpr const char* kTileNames[] = {"skipped", "full", "partial"};

// Rectangles of one colour as a single SVG path, in units of cells.
class Rectangles {
 public:
  void add(int64_t x, int64_t y, int64_t width, int64_t height) {
    path_ += fmt::format("M{} {}h{}v{}h-{}z", x, y, width, height, width);
  }
  std::string element(std::string_view color) const {
    return path_.empty() ? "" : fmt::format("<path fill=\"{}\" d=\"{}\"/>\n", color, path_);
  }

 private:
  std::string path_;
};

struct Panel {
  double x = 0;
  double y = 0;
  double width = 0;
  double height = 0;
};

// Scales content in cells to the size of the panel.
std::string in_panel(const Panel& panel, int64_t columns, int64_t rows, const std::string& content) {
  return fmt::format(
      "<svg x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" viewBox=\"0 0 {} {}\" preserveAspectRatio=\"none\" "
      "shape-rendering=\"crispEdges\">\n{}</svg>\n"
      "<rect x=\"{:g}\" y=\"{:g}\" width=\"{:g}\" height=\"{:g}\" fill=\"none\" stroke=\"#555\"/>\n",
      panel.x, panel.y, panel.width, panel.height, columns, rows, content, panel.x, panel.y, panel.width, panel.height);
}

// The fraction of kept scores in each cell. A cell with more than a few scores is sampled.
class KeptShares {
 public:
  KeptShares(const Problem& problem, const std::vector<TensorView>& captures, const PictureOptions& options)
      : problem_(problem), options_(options) {
    if (problem.mask_mod) {
      views_ = problem::views_of(*problem.mask_mod, problem, captures);
      mask_mod_.emplace(*problem.mask_mod, views_);
    }
  }

  double of(int64_t q_begin, int64_t q_end, int64_t kv_begin, int64_t kv_end) {
    if (!mask_mod_) {
      return 1;
    }
    int64_t kept = 0;
    int64_t asked = 0;
    for_samples(q_begin, q_end, [&](int64_t q) {
      for_samples(kv_begin, kv_end, [&](int64_t kv) {
        kept += mask_mod_->mask_mod(at(q, kv)) ? 1 : 0;
        ++asked;
      });
    });
    return static_cast<double>(kept) / static_cast<double>(asked);
  }

 private:
  // Visits all of a short range. Of a long one, visits the first, the last and some between.
  static void for_samples(int64_t begin, int64_t end, const std::function<void(int64_t)>& body) {
    const int64_t count = std::min(end - begin, kSamplesPerCell);
    for (int64_t i = 0; i < count; ++i) {
      body(count == 1 ? begin : begin + i * (end - 1 - begin) / (count - 1));
    }
  }

  score::Coordinates at(int64_t q, int64_t kv) const {
    return {.b = static_cast<int32_t>(options_.batch),
            .h = static_cast<int32_t>(options_.head),
            .q = static_cast<int32_t>(q),
            .kv = static_cast<int32_t>(kv),
            .q_len = static_cast<int32_t>(problem_.q_len),
            .kv_len = static_cast<int32_t>(problem_.kv_len)};
  }

  const Problem& problem_;
  const PictureOptions& options_;
  std::vector<TensorView> views_;
  std::optional<score::Interpreter> mask_mod_;
};

std::string draw_scores(const Problem& problem, const std::vector<TensorView>& captures, const PictureOptions& options,
                        const Panel& panel) {
  const int64_t rows = std::min(problem.q_len, kMostCells);
  const int64_t columns = std::min(problem.kv_len, kMostCells);
  KeptShares shares(problem, captures, options);
  std::array<Rectangles, kShades> rectangles;
  for (int64_t row = 0; row < rows; ++row) {
    int64_t begin = 0;
    int shade_of_run = -1;
    for (int64_t column = 0; column <= columns; ++column) {
      int shade = -1;
      if (column < columns) {
        const double share = shares.of(row * problem.q_len / rows, (row + 1) * problem.q_len / rows,
                                       column * problem.kv_len / columns, (column + 1) * problem.kv_len / columns);
        shade = share == 0 ? 0 : 1 + static_cast<int>(share * (kShades - 2));
      }
      if (shade != shade_of_run) {
        if (shade_of_run >= 0) {
          rectangles[shade_of_run].add(begin, row, column - begin, 1);
        }
        begin = column;
        shade_of_run = shade;
      }
    }
  }
  constexpr const char* kColors[kShades] = {"#ffffff", "#bdbdbd", "#8a8a8a", "#5c5c5c", "#2f2f2f"};
  std::string content;
  for (int shade = 0; shade < kShades; ++shade) {
    content += rectangles[shade].element(kColors[shade]);
  }
  return in_panel(panel, columns, rows, content);
}

struct DrawnTiles {
  std::string svg;
  TileCounts counts;
};

Result<DrawnTiles> draw_tiles(const Problem& problem, const std::vector<TensorView>& captures,
                              const PictureOptions& options, const Panel& panel) {
  const int64_t rows = divide_up(problem.q_len, options.q_tile);
  const int64_t columns = divide_up(problem.kv_len, options.kv_tile);
  if (rows > kMostTiles / columns) {
    return invalid_argument("{} by {} tiles are more than a picture can show; give a larger --q-tile and --kv-tile",
                            rows, columns);
  }
  const visits::Visits visits(problem, problem.batch, problem.q_len, problem.kv_len, captures);
  std::array<Rectangles, 3> rectangles;
  visits::VisitRow visit_row;
  TileCounts counts{.q_tile = options.q_tile, .kv_tile = options.kv_tile, .skipped = rows * columns};
  rectangles[0].add(0, 0, columns, rows);
  for (int64_t row = 0; row < rows; ++row) {
    visits.row(options.batch, options.head, options.head + 1, row * options.q_tile,
               std::min((row + 1) * options.q_tile, problem.q_len), options.kv_tile, visit_row);
    for (const visits::TileRun& run : visit_row.runs) {
      const int64_t length = run.end - run.begin;
      (run.kind == visits::TileKind::kFull ? counts.full : counts.partial) += length;
      counts.skipped -= length;
      rectangles[static_cast<size_t>(run.kind)].add(run.begin, row, length, 1);
    }
  }
  std::string content;
  for (size_t kind = 0; kind < rectangles.size(); ++kind) {
    content += rectangles[kind].element(kTileColors[kind]);
  }
  return DrawnTiles{in_panel(panel, columns, rows, content), counts};
}

std::string axes(const Problem& problem, const Panel& panel, std::string_view title) {
  return text_at(panel.x, panel.y - 8, "start", title) +
         text_at(panel.x + panel.width, panel.y - 8, "end", fmt::format("{} keys &#8594;", problem.kv_len)) +
         fmt::format(
             "<text transform=\"translate({:g} {:g}) rotate(-90)\" text-anchor=\"end\">&#8592; {} queries</text>\n",
             panel.x - 8, panel.y, problem.q_len);
}

std::string legend(const Panel& panel, const TileCounts& counts) {
  const int64_t amounts[] = {counts.skipped, counts.full, counts.partial};
  std::string result;
  double x = panel.x;
  const double y = panel.y + panel.height + 24;
  for (size_t kind = 0; kind < 3; ++kind) {
    result += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"12\" height=\"12\" fill=\"{}\" stroke=\"#555\"/>\n", x,
                          y - 11, kTileColors[kind]);
    result += text_at(x + 18, y, "start", fmt::format("{} {}", amounts[kind], kTileNames[kind]));
    x += panel.width / 3;
  }
  return result;
}

}  // namespace

Result<Picture> draw_mask(const Problem& problem, std::string_view caption, const std::vector<TensorView>& captures,
                          const PictureOptions& options) {
  if (problem.q_len == 0 || problem.kv_len == 0) {
    return invalid_argument("expected at least one query and one key to draw, got {} and {}", problem.q_len,
                            problem.kv_len);
  }
  // Limits the aspect ratio, so that long thin planes stay readable.
  const double shape = static_cast<double>(problem.q_len) / static_cast<double>(problem.kv_len);
  const double height = kPanelWidth * std::clamp(shape, 0.1, 1.5);
  const Panel left{kMargin, 2 * kMargin, kPanelWidth, height};
  const Panel right{kMargin + kPanelWidth + kGap, 2 * kMargin, kPanelWidth, height};
  FLASHLIFT_ASSIGN_OR_RETURN(const DrawnTiles tiles, draw_tiles(problem, captures, options, right));

  const double total_width = right.x + right.width + kMargin;
  const double total_height = right.y + right.height + kMargin;
  std::string svg = svg_start(total_width, total_height);
  svg += text_at(kMargin, 32, "start", escaped(caption));
  svg += text_at(kMargin, 52, "start", fmt::format("batch {}, head {}", options.batch, options.head));
  svg += axes(problem, left, "scores: kept (dark)");
  svg += axes(problem, right, fmt::format("tiles of {} by {}", options.q_tile, options.kv_tile));
  svg += draw_scores(problem, captures, options, left);
  svg += tiles.svg;
  svg += legend(right, tiles.counts);
  svg += "</svg>\n";
  return Picture{std::move(svg), tiles.counts};
}

}  // namespace flashlift::cli
