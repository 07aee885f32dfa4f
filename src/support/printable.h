// Text that quotes what others gave, such as names in a module, made fit for messages and for terminals.
#pragma once

#include <string>
#include <string_view>

namespace flashlift {

// With U+FFFD in place of each byte that is no UTF-8.
std::string to_utf8(std::string_view text);

// The same with control characters spelled out (\x1b): a terminal would obey them. Lines and tabs stay.
std::string printable(std::string_view text);

// The same in one line: what is quoted must not look like lines of ours.
std::string printable_line(std::string_view text);

}  // namespace flashlift
