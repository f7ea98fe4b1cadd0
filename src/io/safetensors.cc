#include "io/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>
#include <utility>

#include "base/error.h"
#include "base/format.h"
#include "base/maths.h"
#include "io/json.h"
#include "io/posix_file.h"

namespace quire {
namespace {

static_assert(std::endian::native == std::endian::little, "tensor bytes are used as they are");

constexpr size_t kLengthBytes = 8;
constexpr size_t kMaxHeaderBytes = 100'000'000;  // the reference library's limit
// How the text begins that a repository has in place of a large file.
constexpr std::string_view kLfsPointer = "version https://git-lfs.github.com/";
constexpr size_t kHeaderAlignment = 8;  // the largest element
constexpr int64_t kMaxInt = std::numeric_limits<int64_t>::max();
constexpr const char* kMetadata = "__metadata__";
constexpr std::array<std::string_view, 3> kTensorKeys = {"dtype", "shape", "data_offsets"};

struct DTypeRow {
  FileDType dtype;
  const char* name;
  int bytes;
};

constexpr std::array<DTypeRow, 17> kDTypes = {{
    {FileDType::kBool, "BOOL", 1},
    {FileDType::kU8, "U8", 1},
    {FileDType::kI8, "I8", 1},
    {FileDType::kF8E5m2, "F8_E5M2", 1},
    {FileDType::kF8E4m3, "F8_E4M3", 1},
    {FileDType::kF8E8m0, "F8_E8M0", 1},
    {FileDType::kI16, "I16", 2},
    {FileDType::kU16, "U16", 2},
    {FileDType::kF16, "F16", 2},
    {FileDType::kBf16, "BF16", 2},
    {FileDType::kI32, "I32", 4},
    {FileDType::kU32, "U32", 4},
    {FileDType::kF32, "F32", 4},
    {FileDType::kC64, "C64", 8},
    {FileDType::kF64, "F64", 8},
    {FileDType::kI64, "I64", 8},
    {FileDType::kU64, "U64", 8},
}};

const DTypeRow& RowOf(FileDType dtype) {
  const DTypeRow& row = kDTypes[static_cast<size_t>(dtype)];
  QUIRE_CHECK(row.dtype == dtype);
  return row;
}

FileDType ReadDType(const JsonRef& value) {
  const std::string name = value.String();
  for (const DTypeRow& row : kDTypes) {
    if (name == row.name) return row.dtype;
  }
  throw Error(ErrorCode::kInvalidArgument, "{}: unknown dtype {}", value.where(),
              QuoteForMessage(name));
}

// ---- Reading ----

struct Sections {
  std::string_view header;
  std::span<const std::byte> data;
};

Sections SplitFile(std::span<const std::byte> file, const std::string& file_name) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), file.size());
  Require(!text.starts_with(kLfsPointer),
          "{}: expected tensors, got a pointer of Git LFS to them: `git lfs pull` gets the file",
          file_name);
  Require(file.size() >= kLengthBytes, "{}: truncated: expected {} bytes of header length, got {}",
          file_name, kLengthBytes, file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  file = file.subspan(kLengthBytes);
  Require(length <= kMaxHeaderBytes, "{}: header length: expected at most {} bytes, got {}",
          file_name, kMaxHeaderBytes, length);
  Require(length <= file.size(), "{}: truncated: expected a header of {} bytes, got {}", file_name,
          length, file.size());
  return {{reinterpret_cast<const char*>(file.data()), length}, file.subspan(length)};
}

// What the header says of a tensor. Offsets count from the start of the data.
struct HeaderEntry {
  std::string name;
  FileDType dtype;
  std::vector<int64_t> shape;
  ByteOffset begin;
  ByteOffset end;
};

std::vector<int64_t> ReadShape(const JsonRef& value) {
  std::vector<int64_t> shape;
  for (const JsonRef& extent : value.Array()) shape.push_back(extent.Int(0, kMaxInt));
  return shape;
}

ByteOffset TensorBytes(FileDType dtype, const std::vector<int64_t>& shape,
                       const std::string& where) {
  int64_t bytes = FileDTypeBytes(dtype).raw();
  for (int64_t extent : shape) {
    Require(!__builtin_mul_overflow(bytes, extent, &bytes),
            "{}: the size of {} [{}] overflows 64 bits", where, FileDTypeName(dtype),
            fmt::join(shape, ", "));
  }
  return ByteOffset(bytes);
}

HeaderEntry ReadEntry(const std::string& name, const JsonRef& entry, ByteOffset data_bytes) {
  const std::vector<std::string> unknown = entry.UnknownKeys(kTensorKeys);
  if (!unknown.empty()) {
    throw Error(ErrorCode::kInvalidArgument, "{}: unknown key {}", entry.where(),
                QuoteForMessage(unknown.front()));
  }
  HeaderEntry tensor{name, ReadDType(entry.At("dtype")), ReadShape(entry.At("shape")), {}, {}};
  const ByteOffset bytes = TensorBytes(tensor.dtype, tensor.shape, entry.where());

  const JsonRef offsets_value = entry.At("data_offsets");
  const std::vector<JsonRef> offsets = offsets_value.Array();
  Require(offsets.size() == 2, "{}: expected a begin and an end, got {} numbers",
          offsets_value.where(), offsets.size());
  tensor.begin = ByteOffset(offsets[0].Int(0, kMaxInt));
  tensor.end = ByteOffset(offsets[1].Int(0, kMaxInt));
  Require(tensor.begin <= tensor.end, "{}: the begin, {}, is greater than the end, {}",
          offsets_value.where(), tensor.begin, tensor.end);
  Require(tensor.end <= data_bytes, "{}: the end, {}, lies beyond the file's {} bytes of data",
          offsets_value.where(), tensor.end, data_bytes);
  Require(tensor.end - tensor.begin == bytes, "{}: expected {} bytes for {} [{}], got {}",
          offsets_value.where(), bytes, FileDTypeName(tensor.dtype), fmt::join(tensor.shape, ", "),
          tensor.end - tensor.begin);
  return tensor;
}

void RequireExactCover(const std::vector<HeaderEntry>& entries, ByteOffset data_bytes,
                       const std::string& file_name) {
  std::vector<const HeaderEntry*> by_place;
  by_place.reserve(entries.size());
  for (const HeaderEntry& entry : entries) by_place.push_back(&entry);
  const auto place = [](const HeaderEntry* entry) { return std::tie(entry->begin, entry->end); };
  std::ranges::stable_sort(by_place, {}, place);

  ByteOffset covered(0);
  const HeaderEntry* previous = nullptr;
  for (const HeaderEntry* entry : by_place) {
    if (entry->begin > covered) {
      throw Error(ErrorCode::kInvalidArgument,
                  "{}: tensor {}: begins at byte {} of the data, but the {} bytes before belong to "
                  "no tensor",
                  file_name, QuoteForMessage(entry->name), entry->begin, entry->begin - covered);
    }
    if (entry->begin < covered) {
      throw Error(ErrorCode::kInvalidArgument,
                  "{}: tensor {}: bytes {}..{} of the data overlap {}..{} of tensor {}", file_name,
                  QuoteForMessage(entry->name), entry->begin, entry->end, previous->begin,
                  previous->end, QuoteForMessage(previous->name));
    }
    covered = entry->end;
    previous = entry;
  }
  Require(covered == data_bytes, "{}: the last {} bytes belong to no tensor", file_name,
          data_bytes - covered);
}

// By name.
std::vector<HeaderEntry> ReadHeader(std::string_view text, ByteOffset data_bytes,
                                    const std::string& file_name) {
  const std::string source = file_name + ": header";
  Require(text.starts_with('{'), "{}: expected a JSON object that begins with '{{'", source);
  const Json header = ParseJson(text, source, {.max_bytes = ByteOffset(kMaxHeaderBytes)});
  std::vector<HeaderEntry> entries;
  entries.reserve(header.size());
  for (const auto& [name, value] : header.items()) {
    if (name == kMetadata) {
      for (const auto& [key, text_value] : JsonRef(header, source).At(kMetadata).Members()) {
        (void)text_value.String();
      }
    } else {
      const std::string where = fmt::format("{}: tensor {}", file_name, QuoteForMessage(name));
      entries.push_back(ReadEntry(name, JsonRef(value, where), data_bytes));
    }
  }
  RequireExactCover(entries, data_bytes, file_name);
  return entries;
}

// ---- A model's folder ----

constexpr const char* kSingleFile = "model.safetensors";
constexpr const char* kIndexFile = "model.safetensors.index.json";

bool Exists(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

// The file of a shard, which is in the folder of the index.
std::filesystem::path ShardPath(const std::filesystem::path& model_dir, const JsonRef& shard) {
  const std::string name = shard.String();
  const bool is_file_name = !name.empty() && name != "." && name != ".." &&
                            name.find_first_of(std::string_view("/\0", 2)) == std::string::npos;
  Require(is_file_name, "{}: expected the name of a file in the same folder, got {}", shard.where(),
          QuoteForMessage(name));
  std::filesystem::path path = model_dir / name;
  Require(Exists(path), "{}: there is no file {}", shard.where(), QuoteForMessage(name));
  return path;
}

// ---- Writing ----

std::string QuotedName(const std::string& name) {
  try {
    return Json(name).dump();
  } catch (const Json::type_error&) {
    throw Error(ErrorCode::kInvalidArgument, "tensor {}: the name is not UTF-8",
                QuoteForMessage(name));
  }
}

std::string EncodeHeader(std::span<const StoredTensor* const> tensors) {
  std::string header = "{";
  ByteOffset begin(0);
  for (const StoredTensor* tensor : tensors) {
    const ByteOffset end = begin + ByteOffset(tensor->bytes.size());
    header += fmt::format(R"({}{}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", QuotedName(tensor->name),
                          FileDTypeName(tensor->dtype), fmt::join(tensor->shape, ","), begin, end);
    begin = end;
  }
  header += "}";
  header.resize(RoundUp(header.size(), kHeaderAlignment), ' ');
  return header;
}

}  // namespace

const char* FileDTypeName(FileDType dtype) { return RowOf(dtype).name; }
ByteOffset FileDTypeBytes(FileDType dtype) { return ByteOffset(RowOf(dtype).bytes); }

std::vector<StoredTensor> ParseSafetensors(std::span<const std::byte> file,
                                           const std::string& file_name) {
  const Sections sections = SplitFile(file, file_name);
  std::vector<StoredTensor> tensors;
  for (HeaderEntry& entry :
       ReadHeader(sections.header, ByteOffset(sections.data.size()), file_name)) {
    const auto begin = static_cast<size_t>(entry.begin.raw());
    const auto end = static_cast<size_t>(entry.end.raw());
    tensors.push_back({.name = std::move(entry.name),
                       .dtype = entry.dtype,
                       .shape = std::move(entry.shape),
                       .bytes = sections.data.subspan(begin, end - begin),
                       .file = file_name});
  }
  return tensors;
}

void TensorSet::AddFile(const std::filesystem::path& path) {
  files_.emplace_back(path);
  std::ranges::move(ParseSafetensors(files_.back().bytes(), path.string()),
                    std::back_inserter(tensors_));
}

TensorSet TensorSet::OpenFile(const std::filesystem::path& path) {
  TensorSet set;
  set.source_ = path.string();
  set.AddFile(path);
  return set;
}

TensorSet TensorSet::Open(const std::filesystem::path& model_dir) {
  // The one file first, as transformers does.
  if (Exists(model_dir / kSingleFile)) return OpenFile(model_dir / kSingleFile);
  const std::filesystem::path index_path = model_dir / kIndexFile;
  Require(Exists(index_path), "{}: expected {} or {}, found neither", model_dir.string(),
          kSingleFile, kIndexFile);
  const Json index = ReadJsonFile(index_path);
  const auto weight_map = JsonRef(index, index_path.string()).At("weight_map").Members();

  std::set<std::filesystem::path> shards;
  for (const auto& [name, shard] : weight_map) shards.insert(ShardPath(model_dir, shard));
  TensorSet set;
  set.source_ = fmt::format("the {} files of {}", shards.size(), index_path.string());
  for (const std::filesystem::path& shard : shards) set.AddFile(shard);

  std::ranges::stable_sort(set.tensors_, {}, &StoredTensor::name);
  const auto twin = std::ranges::adjacent_find(set.tensors_, {}, &StoredTensor::name);
  if (twin != set.tensors_.end()) {
    throw Error(ErrorCode::kInvalidArgument, "{}: tensor {}: also in {}", twin->file,
                QuoteForMessage(twin->name), std::next(twin)->file);
  }
  for (const auto& [name, shard] : weight_map) {
    const StoredTensor* tensor = set.Find(name);
    const std::string file = (model_dir / shard.String()).string();
    Require(tensor != nullptr && tensor->file == file, "{}: there is no such tensor in {}",
            shard.where(), file);
  }
  return set;
}

const StoredTensor* TensorSet::Find(std::string_view name) const {
  const auto found = std::ranges::lower_bound(tensors_, name, {}, &StoredTensor::name);
  return found != tensors_.end() && found->name == name ? &*found : nullptr;
}

const StoredTensor& TensorSet::At(std::string_view name) const {
  const StoredTensor* tensor = Find(name);
  Require(tensor != nullptr, "tensor {}: not in {}", QuoteForMessage(name), source_);
  return *tensor;
}

void WriteSafetensors(const std::filesystem::path& path, std::span<const StoredTensor> tensors) {
  std::vector<const StoredTensor*> order;
  ByteOffset data_bytes(0);
  for (const StoredTensor& tensor : tensors) {
    order.push_back(&tensor);
    data_bytes += ByteOffset(tensor.bytes.size());
  }
  std::ranges::sort(order, [](const StoredTensor* a, const StoredTensor* b) {
    return std::tie(b->dtype, a->name) < std::tie(a->dtype, b->name);
  });
  const std::string header = EncodeHeader(order);
  (void)ReadHeader(header, data_bytes, path.string());  // the reader's rules are the writer's

  internal::AtomicFile file(path);
  const uint64_t header_bytes = header.size();
  file.Write(std::as_bytes(std::span(&header_bytes, 1)));
  file.Write(std::as_bytes(std::span(header)));
  for (const StoredTensor* tensor : order) file.Write(tensor->bytes);
  file.Commit();
}

}  // namespace quire
