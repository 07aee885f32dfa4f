// fmt's functions, of which Debian has no static library. Compiled with -fkeep-inline-functions: nothing here uses
// them.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include <locale>

// A template, which nothing keeps unless it is asked for.
template std::locale fmt::detail::locale_ref::get<std::locale>() const;
