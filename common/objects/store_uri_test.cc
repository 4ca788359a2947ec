#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/status.h"
#include "common/objects/object_store.h"

namespace rootstock {
namespace {

using testing::HasSubstr;

TEST(StoreUriTest, ReadsBothSchemes) {
  const auto file = ParseStoreUri("file:///srv/adapters/");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_EQ(file->kind, StoreUri::Kind::kFile);
  EXPECT_EQ(file->prefix, "/srv/adapters");
  EXPECT_EQ(file->ToString(), "file:///srv/adapters");
  const auto s3 = ParseStoreUri("s3://tunes/team a/x/");
  ASSERT_TRUE(s3.ok()) << s3.status();
  EXPECT_EQ(s3->kind, StoreUri::Kind::kS3);
  EXPECT_EQ(s3->bucket, "tunes");
  EXPECT_EQ(s3->prefix, "team a/x");
  EXPECT_EQ(s3->ToString(), "s3://tunes/team a/x");
  EXPECT_EQ(ParseStoreUri("s3://tunes")->prefix, "");
  EXPECT_EQ(ParseStoreUri("file:///")->prefix, "/");
}

TEST(StoreUriTest, RefusesByName) {
  const std::pair<const char*, const char*> kBad[] = {
      {"", "neither"},
      {"http://x/y", "neither"},
      {"S3://bucket/x", "neither"},
      {"file://host/x", "absolute path"},
      {"file:///a/../b", "'..' is not allowed"},
      {"file:///a//b", "empty part"},
      {"s3:///x", "not a bucket's name"},
      {"s3://ab/x", "not a bucket's name"},
      {"s3://Bucket/x", "not a bucket's name"},
      {"s3://buc_ket/x", "not a bucket's name"},
      {"s3://user@bucket/x", "not a bucket's name"},
      {"s3://bucket/a/./b", "'.' is not allowed"},
      {"s3://bucket/a\nb", "control characters"},
  };
  for (const auto& [uri, why] : kBad) {
    const auto parsed = ParseStoreUri(uri);
    ASSERT_FALSE(parsed.ok()) << uri;
    EXPECT_EQ(GetErrorDetail(parsed.status())->reason, Reason::kPathInvalid) << uri;
    EXPECT_THAT(std::string(parsed.status().message()), HasSubstr(why)) << uri;
  }
}

TEST(ObjectKeyTest, IsAPlainRelativePath) {
  EXPECT_TRUE(CheckObjectKey("a/b c/ö.safetensors").ok());
  for (const std::string& key :
       {std::string(), std::string("/a"), std::string("a/"), std::string("a/../b"),
        std::string(".."), std::string("a\0b", 3), std::string(1025, 'a')}) {
    EXPECT_FALSE(CheckObjectKey(key).ok()) << key;
  }
}

}  // namespace
}  // namespace rootstock
