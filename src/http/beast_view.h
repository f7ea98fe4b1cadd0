// Beast's view of text, as the standard's.
#ifndef QUIRE_HTTP_BEAST_VIEW_H_
#define QUIRE_HTTP_BEAST_VIEW_H_

#include <boost/beast/core/string_type.hpp>
#include <string_view>

namespace quire::internal {

inline std::string_view View(boost::beast::string_view text) { return {text.data(), text.size()}; }

}  // namespace quire::internal

#endif  // QUIRE_HTTP_BEAST_VIEW_H_
