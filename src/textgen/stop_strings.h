// Finds the first of several texts in a text that comes piece by piece.
#ifndef QUIRE_TEXTGEN_STOP_STRINGS_H_
#define QUIRE_TEXTGEN_STOP_STRINGS_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace quire {

// What comes out, joined, is the text before the first stop string: the one that begins first and, of
// those that begin at one place, the shortest. It does not depend on how the text is
// cut. A piece that may be the beginning of a stop string is kept back until it is clear.
class StopStrings {
 public:
  // None of them may be empty.
  explicit StopStrings(std::vector<std::string> stops);

  // The text that is clear now; empty for ever once one is found.
  std::string Put(std::string_view piece);
  // The text that was kept back: its stop string never came.
  std::string Flush();

  // Which one was found.
  const std::optional<std::string>& found() const { return found_; }

 private:
  // Where the first stop string begins that is whole in held_, and where the first begins that could
  // still become one; npos: nowhere.
  struct Places {
    size_t whole = std::string::npos;
    size_t begun = std::string::npos;
    size_t stop = 0;  // of `whole`
  };
  Places Find() const;

  std::vector<std::string> stops_;
  std::string held_;
  std::optional<std::string> found_;
};

}  // namespace quire

#endif  // QUIRE_TEXTGEN_STOP_STRINGS_H_
