// 128-bit content hashes, for cache keys.
#pragma once

#include <string>
#include <string_view>

namespace flashlift {

// XXH3's 128-bit hash of the text as 32 hexadecimal digits. Stable across machines and versions.
std::string hash_hex(std::string_view text);

}  // namespace flashlift
