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
    {"/", kHtml, page_bytes::index_html},
    {"/icon.svg", kSvg, page_bytes::icon_svg},
    {"/chat.css", kCss, page_bytes::chat_css},
    {"/live.css", kCss, page_bytes::live_css},
    {"/style.css", kCss, page_bytes::style_css},
    {"/api.js", kScript, page_bytes::api_js},
    {"/app.js", kScript, page_bytes::app_js},
    {"/chat.js", kScript, page_bytes::chat_js},
    {"/conversations.js", kScript, page_bytes::conversations_js},
    {"/dom.js", kScript, page_bytes::dom_js},
    {"/history.js", kScript, page_bytes::history_js},
    {"/inline.js", kScript, page_bytes::inline_js},
    {"/live.js", kScript, page_bytes::live_js},
    {"/markdown.js", kScript, page_bytes::markdown_js},
    {"/math.js", kScript, page_bytes::math_js},
    {"/message.js", kScript, page_bytes::message_js},
    {"/probabilities.js", kScript, page_bytes::probabilities_js},
    {"/settings.js", kScript, page_bytes::settings_js},
    {"/stream.js", kScript, page_bytes::stream_js},
    {"/theme.js", kScript, page_bytes::theme_js},
};

}  // namespace

std::span<const PageFile> PageFiles() { return kPageFiles; }

const PageFile* FindPageFile(std::string_view path) {
  const auto found = std::ranges::find(kPageFiles, path, &PageFile::path);
  return found == std::end(kPageFiles) ? nullptr : found;
}

}  // namespace quire
