// Parts of SVG pictures.
#pragma once

#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::cli {

// Refuses the extensions of other picture formats, which programs could not read as SVG.
Status check_picture_name(std::string_view option, const std::string& path);

// Escapes text for XML: replaces characters that are not ASCII by spaces, and keeps the first `most` characters.
std::string escaped(std::string_view text, size_t most = 150);

// anchor: start, middle or end
std::string text_at(double x, double y, std::string_view anchor, std::string_view text);

// The start of a picture, with a white background. "</svg>\n" ends it.
std::string svg_start(double width, double height);

}  // namespace flashlift::cli
