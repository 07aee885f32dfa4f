// Speeds as bars: the picture of `flashlift bench --plot`.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flashlift::cli {

struct Bar {
  std::string name;   // above the bar
  double value = 0;   // its length
  std::string label;  // behind it
};

// An SVG picture.
std::string draw_bars(std::string_view title, const std::vector<Bar>& bars);

}  // namespace flashlift::cli
