// Parts of SVG pictures.
#pragma once

#include <string>
#include <string_view>

#include "flashlift/result.h"

namespace flashlift::cli {

// Refuses the names of other kinds of pictures: no program would read what is written there.
Status check_picture_name(std::string_view option, const std::string& path);

// As text of XML: what is not ASCII becomes a space, and of a long text the first `most` characters stay.
std::string escaped(std::string_view text, size_t most = 150);

// anchor: start, middle or end
std::string text_at(double x, double y, std::string_view anchor, std::string_view text);

// The first element of a picture, with a white background; "</svg>\n" ends it.
std::string svg_start(double width, double height);

}  // namespace flashlift::cli
