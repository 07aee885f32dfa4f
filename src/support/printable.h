// Makes text from others, such as names in a module, safe for messages and terminals.
#pragma once

#include <string>
#include <string_view>

namespace flashlift {

// Replaces each byte that is not valid UTF-8 by U+FFFD.
std::string to_utf8(std::string_view text);

// Also writes control characters as escapes (\x1b), because a terminal would execute them. Keeps line breaks and tabs.
std::string printable(std::string_view text);

// The same in one line, so that quoted text cannot look like lines of our own.
std::string printable_line(std::string_view text);

}  // namespace flashlift
