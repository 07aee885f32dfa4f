#include "cli/svg.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <filesystem>

#include "support/error.h"

namespace flashlift::cli {

Status check_picture_name(std::string_view option, const std::string& path) {
  constexpr std::array kOthers = {".png", ".pdf", ".jpg", ".jpeg", ".gif", ".webp", ".eps", ".ps"};
  const std::filesystem::path name(path);
  if (std::ranges::find(kOthers, name.extension().string()) != kOthers.end()) {
    return invalid_argument("{}: {} names another kind of picture, and an SVG is written: {}", option, path,
                            std::filesystem::path(name).replace_extension(".svg").string());
  }
  return {};
}

std::string escaped(std::string_view text, size_t most) {
  std::string result;
  for (const char c : text.substr(0, most)) {
    switch (c) {
      case '<':
        result += "&lt;";
        break;
      case '>':
        result += "&gt;";
        break;
      case '&':
        result += "&amp;";
        break;
      default:
        // XML does not allow control characters. Other bytes may be parts of a character.
        result += c >= 0x20 && c < 0x7f ? c : ' ';
    }
  }
  return text.size() > most ? result + "..." : result;
}

std::string text_at(double x, double y, std::string_view anchor, std::string_view text) {
  return fmt::format("<text x=\"{:g}\" y=\"{:g}\" text-anchor=\"{}\">{}</text>\n", x, y, anchor, text);
}

std::string svg_start(double width, double height) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0:g}\" height=\"{1:g}\" viewBox=\"0 0 {0:g} {1:g}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
      width, height);
}

}  // namespace flashlift::cli
