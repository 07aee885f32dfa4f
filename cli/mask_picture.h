// A mask as an SVG: on the left which scores are kept, on the right what a kernel makes of it, tile by tile.
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
  TileCounts tiles;  // of the one head drawn
};

// `caption` is printed above the picture. Errors: more tiles than a picture can hold.
Result<Picture> draw_mask(const Problem& problem, std::string_view caption, const std::vector<TensorView>& captures,
                          const PictureOptions& options);

}  // namespace flashlift::cli
