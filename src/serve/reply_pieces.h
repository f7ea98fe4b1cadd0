// The text of a reply, piece by piece.
#ifndef QUIRE_SERVE_REPLY_PIECES_H_
#define QUIRE_SERVE_REPLY_PIECES_H_

#include <cstddef>
#include <functional>
#include <string>

namespace quire {

// What is behind the last call's, "" at the end. A reply may be a hundred times its request, so it is
// written as it is sent, and never all in memory.
using ReplyPieces = std::function<std::string()>;

// About so many bytes at a time.
inline constexpr size_t kPieceBytes = size_t{64} << 10;

}  // namespace quire

#endif  // QUIRE_SERVE_REPLY_PIECES_H_
