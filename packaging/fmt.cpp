// fmt's functions, because Debian has no static library of them. Compiled with -fkeep-inline-functions, because nothing
// in this file calls them.
#define FMT_HEADER_ONLY 1
#include <fmt/format.h>

#include <locale>

// -fkeep-inline-functions does not keep a template that is not instantiated.
template std::locale fmt::detail::locale_ref::get<std::locale>() const;
