// The page at "/": chat, and a live view of the engine. Its files are those of serve/page/, which the
// build puts into the program, so that there is nothing to install and nothing to fetch.
#ifndef QUIRE_SERVE_PAGE_H_
#define QUIRE_SERVE_PAGE_H_

#include <span>
#include <string_view>

namespace quire {

struct PageFile {
  std::string_view path;          // "/" or "/chat.js"
  std::string_view content_type;  // with its charset
  std::string_view bytes;
};

// All of them; they ask for nothing but each other and the API, and hold no inline script or style.
std::span<const PageFile> PageFiles();

// The file at `path`, or nullptr.
const PageFile* FindPageFile(std::string_view path);

}  // namespace quire

#endif  // QUIRE_SERVE_PAGE_H_
