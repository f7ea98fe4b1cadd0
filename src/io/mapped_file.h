// A MappedFile shows a file's bytes in memory. They are read from disk as they are touched.
//
// The file may be removed or replaced (by renaming another onto it) while it is mapped, but not
// made shorter: touching bytes that are gone ends the process (SIGBUS).
#ifndef QUIRE_IO_MAPPED_FILE_H_
#define QUIRE_IO_MAPPED_FILE_H_

#include <cstddef>
#include <filesystem>
#include <span>

#include "base/units.h"

namespace quire {

class MappedFile {
 public:
  // Throws Error(kInvalidArgument) with the path and the system's reason unless `path` is a regular
  // file, or a link to one, that can be read. An empty file has no bytes.
  explicit MappedFile(std::filesystem::path path);

  // A file that was moved from has no bytes. The bytes stay where they are.
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::filesystem::path& path() const { return path_; }
  ByteOffset size() const { return ByteOffset(bytes_.size()); }
  // Aligned to a page of memory. Valid as long as the map.
  std::span<const std::byte> bytes() const { return bytes_; }

 private:
  void Unmap() noexcept;

  std::filesystem::path path_;
  std::span<const std::byte> bytes_;
};

// Gives back the memory that holds these bytes of a map, whole memory pages of them. They are read
// from the file again if they are touched again.
void DropCachedPages(std::span<const std::byte> mapped);

}  // namespace quire

#endif  // QUIRE_IO_MAPPED_FILE_H_
