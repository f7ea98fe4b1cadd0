#include "serve/page.h"

#include <algorithm>

#include "serve/page_bytes.h"  // written by serve/page/embed.cmake

namespace quire {
namespace {

constexpr std::string_view kHtml = "text/html; charset=utf-8";
constexpr std::string_view kCss = "text/css; charset=utf-8";
constexpr std::string_view kScript = "text/javascript; charset=utf-8";
constexpr std::string_view kSvg = "image/svg+xml; charset=utf-8";

constexpr PageFile kPageFiles[] = {
    {"/", kHtml, page_bytes::index_html},       {"/api.js", kScript, page_bytes::api_js},
    {"/app.js", kScript, page_bytes::app_js},   {"/chat.js", kScript, page_bytes::chat_js},
    {"/dom.js", kScript, page_bytes::dom_js},   {"/icon.svg", kSvg, page_bytes::icon_svg},
    {"/live.js", kScript, page_bytes::live_js}, {"/style.css", kCss, page_bytes::style_css},
};

}  // namespace

std::span<const PageFile> PageFiles() { return kPageFiles; }

const PageFile* FindPageFile(std::string_view path) {
  const auto found = std::ranges::find(kPageFiles, path, &PageFile::path);
  return found == std::end(kPageFiles) ? nullptr : found;
}

}  // namespace quire
