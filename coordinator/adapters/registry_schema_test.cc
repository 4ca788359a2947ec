#include "coordinator/adapters/registry_schema.h"

#include "coordinator/adapters/registry_fixture.h"

namespace rootstock {
namespace {

// What the first release made, and two of its adapters.
constexpr char kFirstSchema[] = R"(
CREATE TABLE IF NOT EXISTS meta(key TEXT PRIMARY KEY, value INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS bases(name TEXT PRIMARY KEY, fingerprint BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS contents(
  digest BLOB PRIMARY KEY, blob_bytes INTEGER NOT NULL, modules BLOB NOT NULL,
  receipt TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS adapters(
  tenant TEXT NOT NULL, name TEXT NOT NULL, digest BLOB NOT NULL REFERENCES contents(digest),
  registered_ms INTEGER NOT NULL, PRIMARY KEY(tenant, name));
CREATE INDEX IF NOT EXISTS adapters_by_digest ON adapters(digest);
INSERT INTO meta VALUES('incarnation', 41);
INSERT INTO meta VALUES('revision', 7);
INSERT INTO contents VALUES(
  x'7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed', 3,
  x'00000000000000000800000000000040', '{"text":"one"}');
INSERT INTO adapters VALUES('default', 'a',
  x'7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed', 1234);
INSERT INTO adapters VALUES('other', 'b',
  x'7692c3ad3540bb803c020b3aee66cd8887123234ea0c6e7143c0add73ff431ed', 1235);
)";

class RegistrySchemaTest : public RegistryTest {
 protected:
  void Replace(const char* sql) {
    registry_.reset();
    std::filesystem::remove_all(base_ / "data");
    std::filesystem::create_directories(base_ / "data" / "blobs");
    std::ofstream(base_ / "data" / "blobs" / Sha256Of("one").Hex()) << "one";
    auto db = SqlDatabase::Open(base_ / "data" / "registry.db");
    ASSERT_TRUE(db.ok());
    ASSERT_TRUE((*db)->Execute(sql).ok());
  }
};

TEST_F(RegistrySchemaTest, WhatTheFirstReleaseWroteIsTakenOver) {
  Replace(kFirstSchema);
  for (int restarts = 0; restarts < 2; ++restarts) {
    Open();
    EXPECT_EQ(registry_->size(), 2u);
    const auto a = registry_->Get("a", "default");
    ASSERT_TRUE(a.ok()) << a.status();
    EXPECT_EQ(a->version, 1u);
    EXPECT_EQ(a->digest, Sha256Of("one"));
    EXPECT_EQ(a->registered_unix_ms, 1234);
    EXPECT_EQ(a->receipt_json, "{\"text\":\"one\"}");
    EXPECT_TRUE(registry_->Resolve("b", "other", "r").ok());
  }
  EXPECT_EQ(registry_->incarnation(), 43u);
  Shown("registry_revision 7");
  EXPECT_EQ(registry_->Register("a", "two", "default", true)->version, 2u);
  EXPECT_TRUE(registry_->SetAlias("prod", "default", {{"a", 1}}).ok());
  EXPECT_EQ(TextOf("prod"), "one");
}

TEST_F(RegistrySchemaTest, WhatTheSecondReleaseWroteIsTakenOver) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  ASSERT_TRUE(registry_->Pin("a", "default", 1, "g").ok());
  registry_.reset();
  {
    const auto db = SqlDatabase::Open(base_ / "data" / "registry.db");
    ASSERT_TRUE(
        (*db)
            ->Execute("ALTER TABLE versions DROP COLUMN config;"
                      "ALTER TABLE versions DROP COLUMN last_used_ms; PRAGMA user_version = 2;")
            .ok());
  }
  for (const int64_t used : {0, 1000}) {
    Open();
    EXPECT_EQ(registry_->Get("a", "default")->last_used_unix_ms, used);
    EXPECT_EQ(registry_->Pins().size(), 1u);
    EXPECT_EQ(TextOf("a@1"), "one");  // at 1000
  }
}

// It kept what the first directory of a content had said, whoever's that was: told to nobody now.
TEST_F(RegistrySchemaTest, WhatTheThirdReleaseWroteIsTakenOverWithoutForeignConfigs) {
  ASSERT_TRUE(registry_->Register("a", "one", "default").ok());
  registry_.reset();
  {
    const auto db = SqlDatabase::Open(base_ / "data" / "registry.db");
    ASSERT_TRUE((*db)
                    ->Execute("ALTER TABLE versions DROP COLUMN config; PRAGMA user_version = 3;"
                              "UPDATE contents SET receipt = '{\"base_model_name\":\"secret\","
                              "\"base_name_warning\":\"trained on secret\",\"harmless_fields\":"
                              "[\"f\"],\"modules\":[{\"scale\":0.5}],\"max_rounding\":1e-3}';")
                    .ok());
  }
  for (int restarts = 0; restarts < 2; ++restarts) {
    Open();
    EXPECT_EQ(registry_->Get("a", "default")->receipt_json,
              "{\"modules\":[{\"scale\":0.5}],\"max_rounding\":1e-3}");
    EXPECT_EQ(registry_->Get("a", "default")->config_json, "{}");
  }
  EXPECT_EQ(TextOf("a"), "one");
}

TEST_F(RegistrySchemaTest, WhatALaterReleaseWroteIsLeftAlone) {
  Replace("PRAGMA user_version = 5;");
  const auto opened = Registry::Open({.data_dir = base_ / "data", .loader = LoadText});
  EXPECT_EQ(opened.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(opened.status().message()), testing::HasSubstr("a later release"));
  EXPECT_EQ(Blobs(), 1u);
}

}  // namespace
}  // namespace rootstock
