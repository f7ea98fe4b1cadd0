// Tensors in safetensors files, one or many, as views of the mapped bytes.
//
// A file is an 8-byte little-endian header length, a JSON header {name: {dtype, shape,
// data_offsets}, "__metadata__": {string: string}}, then the data. What is accepted is what the
// format's reference library accepts: the tensors cover the data exactly, in any order, without
// overlap, gap or rest. Stricter than that library: a key may not come twice, the header begins
// with '{', and a tensor has no keys but those three.
#ifndef QUIRE_IO_SAFETENSORS_H_
#define QUIRE_IO_SAFETENSORS_H_

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/units.h"
#include "io/mapped_file.h"

namespace quire {

// Element types by the names that files use, smaller ones first. Quire computes with few of them;
// the others are known so that a file which has one beside the weights can be opened.
enum class FileDType {
  kBool,
  kU8,
  kI8,
  kF8E5m2,
  kF8E4m3,
  kF8E8m0,
  kI16,
  kU16,
  kF16,
  kBf16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};

const char* FileDTypeName(FileDType dtype);  // "BF16"
ByteOffset FileDTypeBytes(FileDType dtype);

struct StoredTensor {
  std::string name{};
  FileDType dtype = FileDType::kF32;
  std::vector<int64_t> shape{};        // row-major; [] is a scalar, an extent may be 0
  std::span<const std::byte> bytes{};  // little-endian; may begin at an odd address
  std::string file{};                  // where it was found, for messages
};

// The tensors of a whole file in memory, by name. Throws Error(kInvalidArgument) with file_name,
// tensor and reason if the file is damaged.
std::vector<StoredTensor> ParseSafetensors(std::span<const std::byte> file,
                                           const std::string& file_name);

// The tensors of one or several mapped files. Names are unique.
class TensorSet {
 public:
  // One file. Throws Error(kInvalidArgument) with file, tensor and reason.
  static TensorSet OpenFile(const std::filesystem::path& path);
  // The folder's model.safetensors or, if there is none, the files that its
  // model.safetensors.index.json names, all tensors of each. Throws as OpenFile does, and if a
  // shard is missing or not in the folder itself, if a tensor is in two shards or not in the one
  // where the index has it.
  static TensorSet Open(const std::filesystem::path& model_dir);

  // By name. Valid, as are the bytes, as long as the set.
  std::span<const StoredTensor> tensors() const { return tensors_; }
  std::span<const MappedFile> files() const { return files_; }

  const StoredTensor* Find(std::string_view name) const;  // nullptr if there is none
  // Throws Error(kInvalidArgument) with the name and the files unless there is such a tensor.
  const StoredTensor& At(std::string_view name) const;

 private:
  TensorSet() = default;
  void AddFile(const std::filesystem::path& path);

  // Invariants once opened:
  //   1. tensors_ is in ascending order of names, each once.
  //   2. The bytes of each tensor lie in one of files_.
  std::vector<MappedFile> files_;
  std::vector<StoredTensor> tensors_;
  std::string source_;  // what was opened, for messages
};

// Writes the tensors as the reference library does: larger elements first, then by name, every
// tensor aligned to its element type. The same tensors in any order give the same bytes. `file` of
// a tensor is not used. Throws Error(kInvalidArgument) if a file of these tensors could not be
// opened again, or with the system's reason; then `path` is as it was.
void WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors);

}  // namespace quire

#endif  // QUIRE_IO_SAFETENSORS_H_
