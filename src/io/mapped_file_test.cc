#include "io/mapped_file.h"

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <iterator>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "base/format.h"
#include "io/posix_file.h"
#include "io/test_files.h"

namespace quire {
namespace {

std::string Text(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

TEST(MappedFileTest, BytesAreThoseOfTheFile) {
  const TempDir dir;
  const std::string contents("a\0b\n", 4);
  const MappedFile file(dir.Write("file", contents));
  EXPECT_EQ(file.size(), ByteOffset(4));
  EXPECT_EQ(Text(file), contents);
  EXPECT_EQ(file.path(), dir.path() / "file");
}

TEST(MappedFileTest, AnEmptyFileHasNoBytes) {
  const TempDir dir;
  const MappedFile file(dir.Write("empty", ""));
  EXPECT_EQ(file.size(), ByteOffset(0));
  EXPECT_TRUE(file.bytes().empty());
}

TEST(MappedFileTest, LinksAreFollowed) {
  const TempDir dir;
  std::filesystem::create_symlink(dir.Write("blob", "abc"), dir.path() / "link");
  EXPECT_EQ(Text(MappedFile(dir.path() / "link")), "abc");
}

TEST(MappedFileTest, AFileReplacedWhileMappedKeepsItsBytes) {
  const TempDir dir;
  const MappedFile file(dir.Write("file", "old"));
  internal::AtomicFile replacement(dir.path() / "file");
  replacement.Write(std::as_bytes(std::span(std::string_view("new"))));
  replacement.Commit();
  EXPECT_EQ(Text(file), "old");
  EXPECT_EQ(ReadAll(dir.path() / "file"), "new");
}

TEST(MappedFileTest, AFileMovedFromHasNoBytes) {
  const TempDir dir;
  MappedFile a(dir.Write("a", "first"));
  MappedFile b(dir.Write("b", "second"));
  const auto* place = a.bytes().data();
  b = std::move(a);
  EXPECT_EQ(Text(b), "first");
  EXPECT_EQ(b.bytes().data(), place);
  EXPECT_TRUE(a.bytes().empty());  // NOLINT(bugprone-use-after-move)
  const MappedFile c(std::move(b));
  EXPECT_EQ(Text(c), "first");
}

TEST(MappedFileTest, WhatCannotBeMappedIsRefusedWithTheReason) {
  const TempDir dir;
  const auto refusal = [&](const std::filesystem::path& path) {
    return InvalidArgument([&] { MappedFile file(path); }, dir.path());
  };
  EXPECT_EQ(refusal(dir.path() / "absent"), "DIR/absent: cannot open: No such file or directory");
  EXPECT_EQ(refusal(dir.Write("file", "") / "x"), "DIR/file/x: cannot open: Not a directory");
  EXPECT_EQ(refusal(dir.path()), "DIR: cannot map: not a regular file");
  ASSERT_EQ(::mkfifo((dir.path() / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(refusal(dir.path() / "pipe"), "DIR/pipe: cannot map: not a regular file");
}

TEST(MappedFileTest, DroppedPagesAreReadAgain) {
  const TempDir dir;
  const std::string text(100000, 'x');
  const MappedFile file(dir.Write("file", text));
  EXPECT_EQ(Text(file), text);
  DropCachedPages(file.bytes().subspan(1));
  DropCachedPages(file.bytes().first(1));  // less than a page: nothing to give back
  EXPECT_EQ(Text(file), text);
}

TEST(AtomicFileTest, WithoutCommitNothingRemains) {
  const TempDir dir;
  const std::filesystem::path path = dir.Write("file", "old");
  {
    internal::AtomicFile file(path);
    file.Write(std::as_bytes(std::span(std::string_view("new"))));
    EXPECT_EQ(ReadAll(path), "old");
  }
  EXPECT_EQ(ReadAll(path), "old");
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.path()), {}), 1);
}

TEST(AtomicFileTest, AFolderThatIsNotThereIsRefused) {
  const TempDir dir;
  EXPECT_EQ(InvalidArgument([&] { internal::AtomicFile file(dir.path() / "no/file"); }, dir.path()),
            "DIR/no/file: cannot create: No such file or directory");
}

}  // namespace
}  // namespace quire
