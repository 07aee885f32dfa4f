#include "cli/bar_picture.h"

#include <fmt/format.h>

#include <algorithm>

#include "cli/svg.h"

namespace flashlift::cli {

std::string draw_bars(std::string_view title, const std::vector<Bar>& bars) {
  constexpr double kMargin = 24;
  constexpr double kTop = 52;
  constexpr double kLongest = 560;
  constexpr double kLabel = 260;
  constexpr double kPitch = 46;  // distance from one bar to the next
  double largest = 0;
  for (const Bar& bar : bars) {
    largest = std::max(largest, bar.value);
  }
  const double scale = largest > 0 ? kLongest / largest : 0;
  std::string svg =
      svg_start(2 * kMargin + kLongest + kLabel, kTop + kPitch * static_cast<double>(bars.size()) + kMargin);
  svg += text_at(kMargin, 30, "start", escaped(title));
  double y = kTop;
  for (const Bar& bar : bars) {
    const double length = bar.value * scale;
    svg += text_at(kMargin, y + 12, "start", escaped(bar.name, 110));
    svg += fmt::format("<rect x=\"{:g}\" y=\"{:g}\" width=\"{:.1f}\" height=\"16\" fill=\"#1f6feb\"/>\n", kMargin,
                       y + 18, length);
    svg += text_at(kMargin + length + 8, y + 31, "start", escaped(bar.label));
    y += kPitch;
  }
  return svg + "</svg>\n";
}

}  // namespace flashlift::cli
