// Names of sizes that are known only in a call, such as kBatchSize.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace flashlift::score {

// A size of a captured tensor in the text form: 64, ?, q_len, 1|batch.
std::string size_text(int64_t size);
// The size with this name, without `1|`.
std::optional<int64_t> parse_size_name(std::string_view name);

}  // namespace flashlift::score
