// Draws a mask as an SVG: on the left the kept scores, on the right the tiles that a kernel skips or visits.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "flashlift/attention.h"

namespace flashlift::cli {

struct PictureOptions {
  int64_t batch = 0;
  int64_t head = 0;
  int64_t q_tile = 128;
  int64_t kv_tile = 128;
};

struct Picture {
  std::string svg;
  TileCounts tiles;  // those of the head that is drawn
};

// `caption` is printed above the picture. Fails if there are more tiles than a picture can show.
Result<Picture> draw_mask(const Problem& problem, std::string_view caption, const std::vector<TensorView>& captures,
                          const PictureOptions& options);

}  // namespace flashlift::cli
