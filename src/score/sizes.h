// Names of the sizes that each call settles, such as kBatchSize.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashlift::score {

// Any size of a captured tensor as the text form has it: 64, ?, q_len, 1|batch.
std::string size_text(int64_t size);
// The size of this name, without `1|`.
std::optional<int64_t> parse_size_name(std::string_view name);

}  // namespace flashlift::score
