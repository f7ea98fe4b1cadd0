#include "io/safetensors.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <iterator>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/format.h"
#include "io/test_files.h"

namespace quire {
namespace {

std::span<const std::byte> Bytes(std::string_view text) { return std::as_bytes(std::span(text)); }

std::string Text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string WithLength(uint64_t length, std::string_view rest) {
  std::string file(sizeof(length), '\0');
  std::memcpy(file.data(), &length, sizeof(length));
  return file.append(rest);
}

std::string File(std::string_view header, std::string_view data = "") {
  return WithLength(header.size(), std::string(header).append(data));
}

std::string Entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::string FileRefusal(std::string_view file) {
  return InvalidArgument([&] { (void)ParseSafetensors(Bytes(file), "f"); });
}

// A file with one tensor and `data_bytes` bytes of data is refused with this message.
std::string EntryRefusal(std::string_view dtype, std::string_view shape, std::string_view offsets,
                         size_t data_bytes) {
  return FileRefusal(
      File("{" + Entry("a", dtype, shape, offsets) + "}", std::string(data_bytes, 'x')));
}

// Two tensors, data of 12 bytes.
std::string PairRefusal(std::string_view a_shape, std::string_view a_offsets,
                        std::string_view b_shape, std::string_view b_offsets) {
  return FileRefusal(File(
      "{" + Entry("a", "U8", a_shape, a_offsets) + "," + Entry("b", "U8", b_shape, b_offsets) + "}",
      "0123456789ab"));
}

TEST(SafetensorsTest, TensorsAreViewsOfTheFileByName) {
  const std::string file =
      File(R"({"__metadata__":{"format":"pt"},)" + Entry("z", "U8", "[3]", "[0,3]") + "," +
               Entry("a", "BF16", "[1,2]", "[3,7]") + "," + Entry("s", "I64", "[]", "[7,15]") +
               "," + Entry("e", "F32", "[5,0]", "[7,7]") + "}   ",
           "zzzaAaAssssssss");
  const std::vector<StoredTensor> tensors = ParseSafetensors(Bytes(file), "f");
  ASSERT_EQ(tensors.size(), 4);
  EXPECT_EQ(tensors[0].name, "a");
  EXPECT_EQ(tensors[0].dtype, FileDType::kBf16);
  EXPECT_EQ(tensors[0].shape, (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(tensors[0].file, "f");
  EXPECT_EQ(Text(tensors[0].bytes), "aAaA");
  EXPECT_EQ(tensors[0].bytes.data(), Bytes(file).data() + file.find("aAaA"));
  EXPECT_EQ(tensors[1].name, "e");
  EXPECT_EQ(tensors[1].shape, (std::vector<int64_t>{5, 0}));
  EXPECT_TRUE(tensors[1].bytes.empty());
  EXPECT_EQ(tensors[2].name, "s");
  EXPECT_TRUE(tensors[2].shape.empty());
  EXPECT_EQ(Text(tensors[2].bytes), "ssssssss");
  EXPECT_EQ(Text(tensors[3].bytes), "zzz");
}

TEST(SafetensorsTest, AFileWithoutTensorsIsEmpty) {
  EXPECT_TRUE(ParseSafetensors(Bytes(File("{}")), "f").empty());
}

TEST(SafetensorsTest, EveryDTypeIsKnownByNameAndSize) {
  const std::vector<std::pair<std::string, size_t>> dtypes = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E5M2", 1}, {"F8_E4M3", 1}, {"F8_E8M0", 1},
      {"I16", 2},  {"U16", 2}, {"F16", 2}, {"BF16", 2},    {"I32", 4},     {"U32", 4},
      {"F32", 4},  {"C64", 8}, {"F64", 8}, {"I64", 8},     {"U64", 8}};
  for (const auto& [name, bytes] : dtypes) {
    const std::string file =
        File("{" + Entry("a", name, "[3]", fmt::format("[0,{}]", 3 * bytes)) + "}",
             std::string(3 * bytes, 'x'));
    const std::vector<StoredTensor> tensors = ParseSafetensors(Bytes(file), "f");
    ASSERT_EQ(tensors.size(), 1);
    EXPECT_EQ(FileDTypeName(tensors[0].dtype), name);
    EXPECT_EQ(FileDTypeBytes(tensors[0].dtype), ByteOffset(bytes));
  }
  EXPECT_EQ(EntryRefusal("F4", "[4]", "[0,2]", 2), "f: tensor \"a\": dtype: unknown dtype \"F4\"");
}

TEST(SafetensorsTest, ATruncatedFileIsRefused) {
  EXPECT_EQ(FileRefusal(""), "f: truncated: expected 8 bytes of header length, got 0");
  EXPECT_EQ(FileRefusal("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 7\n"),
            "f: expected tensors, got a pointer of Git LFS to them: `git lfs pull` gets the file");
  EXPECT_EQ(FileRefusal("\x02\0\0"), "f: truncated: expected 8 bytes of header length, got 1");
  EXPECT_EQ(FileRefusal(WithLength(3, "{}")), "f: truncated: expected a header of 3 bytes, got 2");
  EXPECT_EQ(EntryRefusal("U8", "[8]", "[0,8]", 7),
            "f: tensor \"a\": data_offsets: the end, 8, lies beyond the file's 7 bytes of data");
}

TEST(SafetensorsTest, AHugeHeaderIsRefusedBeforeItIsRead) {
  EXPECT_EQ(FileRefusal(WithLength(100'000'001, "{}")),
            "f: header length: expected at most 100000000 bytes, got 100000001");
  EXPECT_EQ(FileRefusal(WithLength(UINT64_MAX, "{}")),
            "f: header length: expected at most 100000000 bytes, got 18446744073709551615");
  EXPECT_EQ(FileRefusal(WithLength(100'000'000, "{}")),
            "f: truncated: expected a header of 100000000 bytes, got 2");
}

TEST(SafetensorsTest, AHeaderThatIsNotAJsonObjectIsRefused) {
  EXPECT_EQ(FileRefusal(File("")), "f: header: expected a JSON object that begins with '{'");
  EXPECT_EQ(FileRefusal(File("[]")), "f: header: expected a JSON object that begins with '{'");
  EXPECT_EQ(FileRefusal(File(" {}")), "f: header: expected a JSON object that begins with '{'");
  EXPECT_EQ(FileRefusal(File("{\"a\"")),
            "f: header: line 1, column 5: syntax error while parsing object separator - "
            "unexpected end of input; expected ':'");
  EXPECT_EQ(FileRefusal(File("{} {}")),
            "f: header: line 1, column 4: syntax error while parsing value - unexpected '{'; "
            "expected end of input");
}

TEST(SafetensorsTest, AnEntryThatIsNotATensorIsRefused) {
  EXPECT_EQ(FileRefusal(File(R"({"a":[]})")),
            "f: tensor \"a\": expected an object, got an array of 0");
  EXPECT_EQ(FileRefusal(File(R"({"a":{"shape":[0],"data_offsets":[0,0]}})")),
            "f: tensor \"a\": dtype: missing");
  EXPECT_EQ(FileRefusal(File(R"({"a":{"dtype":"U8","data_offsets":[0,0]}})")),
            "f: tensor \"a\": shape: missing");
  EXPECT_EQ(FileRefusal(File(R"({"a":{"dtype":"U8","shape":[0]}})")),
            "f: tensor \"a\": data_offsets: missing");
  EXPECT_EQ(
      FileRefusal(File(R"({"a":{"dtype":"U8","shape":[0],"data_offsets":[0,0],"strides":[1]}})")),
      "f: tensor \"a\": unknown key \"strides\"");
  EXPECT_EQ(FileRefusal(File(R"({"a":{"dtype":8,"shape":[0],"data_offsets":[0,0]}})")),
            "f: tensor \"a\": dtype: expected a string, got 8");
  EXPECT_EQ(FileRefusal(File(R"({"__metadata__":{"format":1}})")),
            "f: header: __metadata__.format: expected a string, got 1");
  EXPECT_EQ(FileRefusal(File(R"({"__metadata__":"pt"})")),
            "f: header: __metadata__: expected an object, got \"pt\"");
}

TEST(SafetensorsTest, ExtentsThatAreNotCountsAreRefused) {
  EXPECT_EQ(EntryRefusal("U8", "[2,-1]", "[0,2]", 2),
            "f: tensor \"a\": shape[1]: expected an integer of 0 or more, got -1");
  EXPECT_EQ(EntryRefusal("U8", "[2.0]", "[0,2]", 2),
            "f: tensor \"a\": shape[0]: expected an integer of 0 or more, got 2.0");
  EXPECT_EQ(EntryRefusal("U8", "[\"2\"]", "[0,2]", 2),
            "f: tensor \"a\": shape[0]: expected an integer of 0 or more, got \"2\"");
  EXPECT_EQ(EntryRefusal("U8", "[9223372036854775808]", "[0,2]", 2),
            "f: tensor \"a\": shape[0]: expected an integer of 0 or more, got 9223372036854775808");
  EXPECT_EQ(EntryRefusal("U8", "2", "[0,2]", 2),
            "f: tensor \"a\": shape: expected an array, got 2");
}

TEST(SafetensorsTest, AShapeThatOverflowsIsRefused) {
  // 2^62 elements of 4 bytes would be 0 bytes, modulo 2^64.
  EXPECT_EQ(EntryRefusal("F32", "[4611686018427387904]", "[0,0]", 0),
            "f: tensor \"a\": the size of F32 [4611686018427387904] overflows 64 bits");
  EXPECT_EQ(EntryRefusal("U8", "[4294967296,4294967296]", "[0,0]", 0),
            "f: tensor \"a\": the size of U8 [4294967296, 4294967296] overflows 64 bits");
}

TEST(SafetensorsTest, OffsetsThatAreNotARangeOfTheDataAreRefused) {
  EXPECT_EQ(EntryRefusal("U8", "[4]", "[0,4,8]", 8),
            "f: tensor \"a\": data_offsets: expected a begin and an end, got 3 numbers");
  EXPECT_EQ(EntryRefusal("U8", "[4]", "[-4,0]", 8),
            "f: tensor \"a\": data_offsets[0]: expected an integer of 0 or more, got -4");
  EXPECT_EQ(EntryRefusal("U8", "[4]", "[0,18446744073709551616]", 8),
            "f: tensor \"a\": data_offsets[1]: expected an integer of 0 or more, got "
            "1.8446744073709552e+19");
  EXPECT_EQ(EntryRefusal("U8", "[4]", "[8,4]", 8),
            "f: tensor \"a\": data_offsets: the begin, 8, is greater than the end, 4");
  EXPECT_EQ(EntryRefusal("U8", "[4]", "[8,12]", 8),
            "f: tensor \"a\": data_offsets: the end, 12, lies beyond the file's 8 bytes of data");
}

TEST(SafetensorsTest, AByteSizeOtherThanTheShapesIsRefused) {
  EXPECT_EQ(EntryRefusal("BF16", "[2,3]", "[0,8]", 8),
            "f: tensor \"a\": data_offsets: expected 12 bytes for BF16 [2, 3], got 8");
  EXPECT_EQ(EntryRefusal("F32", "[]", "[0,0]", 0),
            "f: tensor \"a\": data_offsets: expected 4 bytes for F32 [], got 0");
}

TEST(SafetensorsTest, TensorsThatOverlapAreRefused) {
  EXPECT_EQ(PairRefusal("[8]", "[0,8]", "[5]", "[7,12]"),
            "f: tensor \"b\": bytes 7..12 of the data overlap 0..8 of tensor \"a\"");
  EXPECT_EQ(PairRefusal("[12]", "[0,12]", "[12]", "[0,12]"),
            "f: tensor \"b\": bytes 0..12 of the data overlap 0..12 of tensor \"a\"");
  EXPECT_EQ(PairRefusal("[0]", "[4,4]", "[12]", "[0,12]"),
            "f: tensor \"a\": bytes 4..4 of the data overlap 0..12 of tensor \"b\"");
}

TEST(SafetensorsTest, BytesOfNoTensorAreRefused) {
  EXPECT_EQ(PairRefusal("[4]", "[0,4]", "[4]", "[8,12]"),
            "f: tensor \"b\": begins at byte 8 of the data, but the 4 bytes before belong to no "
            "tensor");
  EXPECT_EQ(PairRefusal("[4]", "[8,12]", "[7]", "[1,8]"),
            "f: tensor \"b\": begins at byte 1 of the data, but the 1 bytes before belong to no "
            "tensor");
  EXPECT_EQ(PairRefusal("[4]", "[0,4]", "[4]", "[4,8]"), "f: the last 4 bytes belong to no tensor");
}

TEST(SafetensorsTest, ANameThatComesTwiceInAFileIsRefused) {
  const std::string header =
      "{" + Entry("a", "U8", "[1]", "[0,1]") + "," + Entry("a", "U8", "[1]", "[1,2]") + "}";
  EXPECT_EQ(FileRefusal(File(header, "xy")), "f: header: line 1, column 56: duplicate key \"a\"");
}

TEST(SafetensorsTest, MessagesShowNamesPrintably) {
  EXPECT_EQ(FileRefusal(File(R"({"a\nb\u0000":3})")),
            R"(f: tensor "a\nb\u0000": expected an object, got 3)");
}

// ---- Writing and opening ----

class TensorSetTest : public testing::Test {
 protected:
  std::string OpenRefusal() const {
    return InvalidArgument([&] { (void)TensorSet::Open(dir_.path()); }, dir_.path());
  }
  void WriteShard(const std::string& file, std::initializer_list<std::string> names) const {
    std::vector<StoredTensor> tensors;
    for (const std::string& name : names) {
      tensors.push_back(
          {.name = name, .dtype = FileDType::kU8, .shape = {4}, .bytes = Bytes("abcd")});
    }
    WriteSafetensors(dir_.path() / file, tensors);
  }
  void WriteIndex(const std::string& weight_map) const {
    dir_.Write("model.safetensors.index.json",
               R"({"metadata":{"total_size":8},"weight_map":)" + weight_map + "}");
  }

  TempDir dir_;
};

std::vector<std::string> Names(const TensorSet& set) {
  std::vector<std::string> names;
  for (const StoredTensor& tensor : set.tensors()) names.push_back(tensor.name);
  return names;
}

TEST_F(TensorSetTest, WhatIsWrittenIsRead) {
  // Every bit pattern of 16 bits, NaNs included; fp8 likewise.
  std::vector<uint16_t> halves(65536);
  for (size_t i = 0; i < halves.size(); ++i) halves[i] = static_cast<uint16_t>(i);
  std::vector<uint8_t> quarters(256);
  for (size_t i = 0; i < quarters.size(); ++i) quarters[i] = static_cast<uint8_t>(255 - i);
  const float scale = 0.125f;
  const std::vector<StoredTensor> tensors = {
      {.name = "fp8",
       .dtype = FileDType::kF8E4m3,
       .shape = {2, 128},
       .bytes = std::as_bytes(std::span(quarters))},
      {.name = "half",
       .dtype = FileDType::kF16,
       .shape = {256, 256},
       .bytes = std::as_bytes(std::span(halves))},
      {.name = "brain",
       .dtype = FileDType::kBf16,
       .shape = {1, 65536, 1},
       .bytes = std::as_bytes(std::span(halves))},
      {.name = "scale \"\xc3\xa9\"",
       .dtype = FileDType::kF32,
       .shape = {},
       .bytes = std::as_bytes(std::span(&scale, 1))},
      {.name = "none", .dtype = FileDType::kI64, .shape = {0, 7}, .bytes = {}},
  };
  WriteSafetensors(dir_.path() / "model.safetensors", tensors);
  const TensorSet set = TensorSet::Open(dir_.path());
  EXPECT_EQ(Names(set),
            (std::vector<std::string>{"brain", "fp8", "half", "none", "scale \"\xc3\xa9\""}));
  ASSERT_EQ(set.files().size(), 1);
  for (const StoredTensor& expected : tensors) {
    SCOPED_TRACE(expected.name);
    const StoredTensor& actual = set.At(expected.name);
    EXPECT_EQ(actual.dtype, expected.dtype);
    EXPECT_EQ(actual.shape, expected.shape);
    EXPECT_EQ(actual.file, (dir_.path() / "model.safetensors").string());
    EXPECT_TRUE(std::ranges::equal(actual.bytes, expected.bytes));
    const auto address = reinterpret_cast<uintptr_t>(actual.bytes.data());
    EXPECT_EQ(address % FileDTypeBytes(actual.dtype).raw(), 0);
  }
}

TEST_F(TensorSetTest, TheOrderOfTheTensorsDoesNotChangeTheFile) {
  std::vector<StoredTensor> tensors = {
      {.name = "b", .dtype = FileDType::kF16, .shape = {1}, .bytes = Bytes("bb")},
      {.name = "c", .dtype = FileDType::kF32, .shape = {1}, .bytes = Bytes("cccc")},
      {.name = "a", .dtype = FileDType::kF16, .shape = {}, .bytes = Bytes("aa")},
  };
  WriteSafetensors(dir_.path() / "file", tensors);
  const std::string expected = File(R"({"c":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},)"
                                    R"("a":{"dtype":"F16","shape":[],"data_offsets":[4,6]},)"
                                    R"("b":{"dtype":"F16","shape":[1],"data_offsets":[6,8]}})"
                                    " ",
                                    "ccccaabb");
  EXPECT_EQ(ReadAll(dir_.path() / "file"), expected);
  std::ranges::reverse(tensors);
  WriteSafetensors(dir_.path() / "file", tensors);
  EXPECT_EQ(ReadAll(dir_.path() / "file"), expected);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir_.path()), {}), 1);
}

// What the reference library writes for no tensors.
TEST_F(TensorSetTest, NoTensorsMakeAnEmptyFile) {
  WriteSafetensors(dir_.path() / "file", {});
  EXPECT_EQ(ReadAll(dir_.path() / "file"), File("{}      "));
  EXPECT_TRUE(TensorSet::OpenFile(dir_.path() / "file").tensors().empty());
}

TEST_F(TensorSetTest, WhatCouldNotBeReadIsNotWritten) {
  const auto refusal = [&](const std::vector<StoredTensor>& tensors) {
    return InvalidArgument([&] { WriteSafetensors(dir_.path() / "file", tensors); }, dir_.path());
  };
  const StoredTensor good = {
      .name = "a", .dtype = FileDType::kU8, .shape = {2}, .bytes = Bytes("xy")};
  StoredTensor bad = good;
  bad.shape = {3};
  EXPECT_EQ(refusal({bad}),
            "DIR/file: tensor \"a\": data_offsets: expected 3 bytes for U8 [3], got 2");
  EXPECT_EQ(refusal({good, good}), "DIR/file: header: line 1, column 56: duplicate key \"a\"");
  bad = good;
  bad.name = "__metadata__";
  EXPECT_EQ(refusal({bad}),
            "DIR/file: header: __metadata__.data_offsets: expected a string, got an array of 2");
  bad.name = "\xff";
  EXPECT_EQ(refusal({bad}), "tensor \"\xef\xbf\xbd\": the name is not UTF-8");
  EXPECT_TRUE(std::filesystem::is_empty(dir_.path()));
}

TEST_F(TensorSetTest, ShardsAreOneSet) {
  WriteShard("m-2.safetensors", {"b", "d"});
  WriteShard("m-1.safetensors", {"c", "a", "unlisted"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors",)"
             R"("c":"m-1.safetensors","d":"m-2.safetensors"})");
  TensorSet set = TensorSet::Open(dir_.path());
  EXPECT_EQ(Names(set), (std::vector<std::string>{"a", "b", "c", "d", "unlisted"}));
  EXPECT_EQ(set.At("d").file, (dir_.path() / "m-2.safetensors").string());
  EXPECT_EQ(Text(set.At("d").bytes), "abcd");
  EXPECT_EQ(set.Find("e"), nullptr);
  const TensorSet moved = std::move(set);
  EXPECT_EQ(Text(moved.At("a").bytes), "abcd");
}

TEST_F(TensorSetTest, TheSingleFileComesBeforeTheIndex) {
  WriteShard("model.safetensors", {"single"});
  WriteShard("m-1.safetensors", {"sharded"});
  WriteIndex(R"({"sharded":"m-1.safetensors"})");
  EXPECT_EQ(Names(TensorSet::Open(dir_.path())), std::vector<std::string>{"single"});
}

TEST_F(TensorSetTest, ATensorThatIsNotThereIsNamedWithTheFiles) {
  WriteShard("m-1.safetensors", {"a"});
  WriteShard("m-2.safetensors", {"b"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  const TensorSet set = TensorSet::Open(dir_.path());
  EXPECT_EQ(InvalidArgument([&] { (void)set.At("x.weight"); }, dir_.path()),
            "tensor \"x.weight\": not in the 2 files of DIR/model.safetensors.index.json");
  const TensorSet single = TensorSet::OpenFile(dir_.path() / "m-1.safetensors");
  EXPECT_EQ(InvalidArgument([&] { (void)single.At(""); }, dir_.path()),
            "tensor \"\": not in DIR/m-1.safetensors");
}

TEST_F(TensorSetTest, AFolderWithoutAModelIsRefused) {
  EXPECT_EQ(OpenRefusal(),
            "DIR: expected model.safetensors or model.safetensors.index.json, found neither");
  EXPECT_EQ(InvalidArgument([&] { (void)TensorSet::Open(dir_.path() / "no"); }, dir_.path()),
            "DIR/no: expected model.safetensors or model.safetensors.index.json, found neither");
}

TEST_F(TensorSetTest, ADamagedFileIsNamed) {
  dir_.Write("model.safetensors", "short");
  EXPECT_EQ(OpenRefusal(),
            "DIR/model.safetensors: truncated: expected 8 bytes of header length, got 5");
}

TEST_F(TensorSetTest, ADamagedShardIsNamed) {
  WriteShard("m-1.safetensors", {"a", "b"});
  std::filesystem::resize_file(dir_.path() / "m-1.safetensors",
                               std::filesystem::file_size(dir_.path() / "m-1.safetensors") - 1);
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-1.safetensors"})");
  EXPECT_EQ(OpenRefusal(),
            "DIR/m-1.safetensors: tensor \"b\": data_offsets: the end, 8, lies beyond the file's 7 "
            "bytes of data");
}

TEST_F(TensorSetTest, ADamagedIndexIsRefused) {
  const std::string index = "DIR/model.safetensors.index.json: ";
  dir_.Write("model.safetensors.index.json", "{");
  EXPECT_EQ(OpenRefusal(), index +
                               "line 1, column 2: syntax error while parsing object key - "
                               "unexpected end of input; expected string literal");
  dir_.Write("model.safetensors.index.json", "{}");
  EXPECT_EQ(OpenRefusal(), index + "weight_map: missing");
  WriteIndex("[]");
  EXPECT_EQ(OpenRefusal(), index + "weight_map: expected an object, got an array of 0");
  WriteIndex(R"({"a.b":7})");
  EXPECT_EQ(OpenRefusal(), index + "weight_map.\"a.b\": expected a string, got 7");
  WriteIndex(R"({"a":"m","a":"m"})");
  EXPECT_EQ(OpenRefusal(), index + "line 1, column 54: duplicate key \"a\"");
}

TEST_F(TensorSetTest, AMissingShardIsRefused) {
  WriteShard("m-1.safetensors", {"a"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  EXPECT_EQ(OpenRefusal(),
            "DIR/model.safetensors.index.json: weight_map.b: there is no file \"m-2.safetensors\"");
}

TEST_F(TensorSetTest, AShardOutsideTheFolderIsRefused) {
  for (const std::string name : {"../x", "/etc/passwd", "sub/x", "..", ".", "", "x\\u0000y"}) {
    WriteIndex(R"({"a":")" + name + R"("})");
    EXPECT_EQ(OpenRefusal(),
              "DIR/model.safetensors.index.json: weight_map.a: expected the name of a file in the "
              "same folder, got \"" +
                  name + "\"");
  }
}

TEST_F(TensorSetTest, ATensorThatIsNotInItsShardIsRefused) {
  WriteShard("m-1.safetensors", {"a"});
  WriteShard("m-2.safetensors", {"b"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors","c":"m-2.safetensors"})");
  EXPECT_EQ(OpenRefusal(),
            "DIR/model.safetensors.index.json: weight_map.c: there is no such tensor in "
            "DIR/m-2.safetensors");
  WriteIndex(R"({"a":"m-2.safetensors","b":"m-1.safetensors"})");
  EXPECT_EQ(OpenRefusal(),
            "DIR/model.safetensors.index.json: weight_map.a: there is no such tensor in "
            "DIR/m-2.safetensors");
}

TEST_F(TensorSetTest, ATensorInTwoShardsIsRefused) {
  WriteShard("m-1.safetensors", {"a", "b"});
  WriteShard("m-2.safetensors", {"b"});
  WriteIndex(R"({"a":"m-1.safetensors","b":"m-2.safetensors"})");
  EXPECT_EQ(OpenRefusal(), "DIR/m-1.safetensors: tensor \"b\": also in DIR/m-2.safetensors");
}

// A sparse file: it takes a few pages of disk.
TEST_F(TensorSetTest, OffsetsBeyondFourGigabytesAreReached) {
  constexpr int64_t kBig = (int64_t{1} << 32) + 12;
  const std::string header =
      File("{" + Entry("big", "U8", fmt::format("[{}]", kBig), fmt::format("[0,{}]", kBig)) + "," +
           Entry("tail", "F16", "[3]", fmt::format("[{},{}]", kBig, kBig + 6)) + "}");
  const std::filesystem::path path = dir_.Write("model.safetensors", header);
  const auto data = static_cast<int64_t>(header.size());
  std::filesystem::resize_file(path, static_cast<uintmax_t>(data + kBig));
  std::ofstream(path, std::ios::binary | std::ios::app) << "sixsix";

  const TensorSet set = TensorSet::Open(dir_.path());
  EXPECT_EQ(set.files()[0].size(), ByteOffset(data + kBig + 6));
  const StoredTensor& tail = set.At("tail");
  EXPECT_EQ(Text(tail.bytes), "sixsix");
  EXPECT_EQ(tail.bytes.data() - set.At("big").bytes.data(), kBig);
  EXPECT_EQ(set.At("big").bytes.size(), kBig);
  EXPECT_EQ(set.At("big").bytes.back(), std::byte{0});
}

// ---- Damage at random ----

// What was opened lies in the file and is as large as it says.
void CheckTensors(std::span<const std::byte> file, const std::vector<StoredTensor>& tensors) {
  std::string previous;
  for (const StoredTensor& tensor : tensors) {
    int64_t bytes = FileDTypeBytes(tensor.dtype).raw();
    for (int64_t extent : tensor.shape) bytes *= extent;
    ASSERT_EQ(tensor.bytes.size(), bytes);
    ASSERT_GE(tensor.bytes.data(), file.data());
    ASSERT_LE(tensor.bytes.data() + bytes, file.data() + file.size());
    ASSERT_TRUE(&tensor == tensors.data() || previous < tensor.name);
    previous = tensor.name;
  }
}

TEST(SafetensorsDamageTest, ADamagedFileIsOpenedWholeOrRefused) {
  const std::string good =
      File(R"({"__metadata__":{"format":"pt"},)" + Entry("w.0", "F32", "[2,3]", "[0,24]") + "," +
               Entry("w.1", "BF16", "[4]", "[24,32]") + "," +
               Entry("w.2", "F8_E4M3", "[1,8]", "[32,40]") + "}",
           std::string(40, 'd'));
  // Bytes that mean something in a header, beside random ones.
  constexpr std::string_view kTelling = "{}[]\",:0123456789-.eE\\ ";
  int num_opened = 0;
  int num_refused = 0;
  std::mt19937 random(1);
  const auto below = [&](size_t n) { return random() % n; };
  for (int trial = 0; trial < 20000; ++trial) {
    SCOPED_TRACE(trial);
    std::string damaged = good;
    const size_t num_changes = 1 + below(3);
    for (size_t i = 0; i < num_changes; ++i) {
      char& byte = damaged[below(damaged.size())];
      switch (below(4)) {
        case 0:
          byte = static_cast<char>(byte ^ (1 << below(8)));
          break;
        case 1:
          byte = kTelling[below(kTelling.size())];
          break;
        case 2:
          byte = static_cast<char>(below(256));
          break;
        case 3:
          damaged.resize(1 + below(damaged.size()));
          break;
      }
    }
    // In memory of exactly its size, so that a sanitizer sees a read past the end.
    const std::vector<char> exact(damaged.begin(), damaged.end());
    const std::span<const std::byte> bytes = std::as_bytes(std::span(exact));
    try {
      const std::vector<StoredTensor> tensors = ParseSafetensors(bytes, "f");
      CheckTensors(bytes, tensors);
      ++num_opened;
    } catch (const Error& error) {
      ASSERT_TRUE(std::string_view(error.what()).starts_with("f: ")) << error.what();
      ++num_refused;
    }
    if (testing::Test::HasFatalFailure()) return;
  }
  EXPECT_GT(num_opened, 100);
  EXPECT_GT(num_refused, 1000);
}

TEST(SafetensorsDamageTest, EveryTruncationIsRefused) {
  const std::string good = File("{" + Entry("a", "F32", "[2]", "[0,8]") + "}", "abcdefgh");
  ASSERT_NO_THROW((void)ParseSafetensors(Bytes(good), "f"));
  for (size_t size = 0; size < good.size(); ++size) {
    const std::vector<char> cut(good.begin(), good.begin() + static_cast<std::ptrdiff_t>(size));
    EXPECT_THROW((void)ParseSafetensors(std::as_bytes(std::span(cut)), "f"), Error) << size;
  }
}

}  // namespace
}  // namespace quire
