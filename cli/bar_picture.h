// Draws speeds as bars, for `flashlift bench --plot`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlift::cli {

struct Bar {
  std::string name;   // above the bar
  double value = 0;   // its length
  std::string label;  // after the bar
};

// Returns an SVG picture.
std::string draw_bars(std::string_view title, const std::vector<Bar>& bars);

}  // namespace flashlift::cli
