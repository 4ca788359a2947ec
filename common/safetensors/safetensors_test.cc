#include "common/safetensors/safetensors.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <fstream>

#include "common/base/status.h"

namespace rootstock {
namespace {

std::span<const uint8_t> Bytes(const std::string& s) {
  return {reinterpret_cast<const uint8_t*>(s.data()), s.size()};
}

// Length prefix, JSON, `data_bytes` zero bytes.
std::string Raw(const std::string& json, size_t data_bytes) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
  return out + json + std::string(data_bytes, '\0');
}

absl::Status ParseRaw(const std::string& file, SafetensorsLimits limits = {}) {
  return SafetensorsFile::Parse(Bytes(file), "x.safetensors", limits).status();
}

void ExpectRefused(const std::string& file, Reason reason, const std::string& mention,
                   SafetensorsLimits limits = {}) {
  const absl::Status status = ParseRaw(file, limits);
  ASSERT_FALSE(status.ok()) << mention;
  const auto detail = GetErrorDetail(status);
  ASSERT_TRUE(detail.has_value());
  EXPECT_STREQ(ReasonName(detail->reason), ReasonName(reason)) << status;
  EXPECT_NE(std::string(status.message()).find(mention), std::string::npos) << status;
  EXPECT_NE(std::string(status.message()).find("x.safetensors"), std::string::npos) << status;
}

std::string One(const std::string& body) { return "{\"t\":{" + body + "}}"; }

TEST(Safetensors, ReadsTensorsAndMetadata) {
  const std::string file = Raw(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[2,3],"data_offsets":[4,16]},)"
      R"("a":{"data_offsets":[0,4],"shape":[],"dtype":"F32"}}  )",
      16);
  const auto parsed = SafetensorsFile::Parse(Bytes(file), "x", {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  ASSERT_EQ(parsed->tensors().size(), 2u);
  EXPECT_EQ(parsed->tensors()[0].name, "a");
  EXPECT_EQ(parsed->metadata().at("format"), "pt");
  const TensorView* b = parsed->Find("b");
  ASSERT_NE(b, nullptr);
  EXPECT_EQ(b->dtype, DType::kBF16);
  EXPECT_EQ(b->shape, (std::vector<int64_t>{2, 3}));
  EXPECT_EQ(b->bytes.data(), Bytes(file).data() + file.size() - 12);
  EXPECT_EQ(parsed->Find("c"), nullptr);
}

TEST(Safetensors, TruncatedAnywhereIsRefused) {
  const std::string file = Raw(One(R"("dtype":"F32","shape":[4],"data_offsets":[0,16])"), 16);
  ASSERT_TRUE(ParseRaw(file).ok());
  for (size_t n = 0; n < file.size(); ++n) {
    const auto detail = GetErrorDetail(ParseRaw(file.substr(0, n)));
    ASSERT_TRUE(detail.has_value());
    EXPECT_EQ(detail->reason, Reason::kTruncated) << n;
  }
}

TEST(Safetensors, HeaderLengthIsCheckedBeforeAllocation) {
  std::string file(8, '\xff');
  ExpectRefused(file + "{}", Reason::kHeaderTooLarge, "header");
  file = Raw("{}", 0);
  file[2] = 1;  // 65538 bytes in a file of 10
  ExpectRefused(file, Reason::kTruncated, "header");
  ExpectRefused(Raw("{" + std::string(100, ' ') + "}", 0), Reason::kHeaderTooLarge, "header",
                {.max_header_bytes = 64});
  ExpectRefused(Raw("{}", 100), Reason::kSizeLimit, "110", {.max_file_bytes = 64});
}

TEST(Safetensors, MalformedHeaders) {
  const char* kBad[] = {
      "",
      "[]",
      " {}",
      "{",
      "{}}",
      "null",
      "{\"t\":1}",
      "{\"t\":\"x\"}",
      "{\"t\":[]}",
      "{\"t\":null}",
      "{\"t\":{}}",
      "{\"__metadata__\":{\"a\":1}}",
      "{\"__metadata__\":{\"a\":{}}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":1,\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1.0],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[[1]],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[\"1\"],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,8]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[4,0]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4],\"x\":1}}",
      "{\"t\":{\"dtype\":4,\"shape\":[1],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]}}",
      "{\"t\":{\"dtype\":\"F32\",\"shape\":[99999999999999999999],\"data_offsets\":[0,4]}}",
      "{\"\xff\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}",
  };
  for (const char* json : kBad) {
    ExpectRefused(Raw(json, 4), Reason::kHeaderInvalid, "header");
  }
  ExpectRefused(Raw("{\"t\":" + std::string(100000, '['), 4), Reason::kHeaderInvalid, "header");
}

TEST(Safetensors, DuplicateKeysAreRefused) {
  const std::string t = R"("t":{"dtype":"F32","shape":[1],"data_offsets":[0,4]})";
  ExpectRefused(Raw("{" + t + "," + t + "}", 4), Reason::kDuplicate, "x.safetensors=t");
  ExpectRefused(Raw(One(R"("dtype":"F32","dtype":"F16","shape":[1],"data_offsets":[0,4])"), 4),
                Reason::kDuplicate, "dtype twice");
  ExpectRefused(Raw(R"({"__metadata__":{"a":"1","a":"2"}})", 0), Reason::kDuplicate, "a");
  ExpectRefused(Raw(R"({"__metadata__":{},"__metadata__":{}})", 0), Reason::kDuplicate, "twice");
}

TEST(Safetensors, OtherDtypesNameTensorAndType) {
  for (const char* dtype : {"I8", "F64", "F8_E4M3", "BOOL", "Q4", "f32", ""}) {
    const std::string json =
        One("\"dtype\":\"" + std::string(dtype) + "\",\"shape\":[4],\"data_offsets\":[0,4]");
    ExpectRefused(Raw(json, 4), Reason::kDtype, dtype);
    ExpectRefused(Raw(json, 4), Reason::kDtype, "=t:");
  }
}

std::string Two(int b1, int e1, int b2, int e2) {
  const auto t = [](const char* n, int b, int e) {
    return std::string("\"") + n + "\":{\"dtype\":\"F32\",\"shape\":[" +
           std::to_string((e - b) / 4) + "],\"data_offsets\":[" + std::to_string(b) + "," +
           std::to_string(e) + "]}";
  };
  return "{" + t("p", b1, e1) + "," + t("q", b2, e2) + "}";
}

TEST(Safetensors, OffsetsMustCoverTheDataExactly) {
  EXPECT_TRUE(ParseRaw(Raw(Two(0, 8, 8, 16), 16)).ok());
  EXPECT_TRUE(ParseRaw(Raw(Two(8, 16, 0, 8), 16)).ok());
  EXPECT_TRUE(ParseRaw(Raw(Two(0, 8, 0, 0), 8)).ok());                          // an empty one
  ExpectRefused(Raw(Two(0, 8, 4, 12), 12), Reason::kOverlapOrHole, "offset");   // overlap
  ExpectRefused(Raw(Two(0, 8, 0, 8), 8), Reason::kOverlapOrHole, "offset");     // the same bytes
  ExpectRefused(Raw(Two(0, 8, 12, 16), 16), Reason::kOverlapOrHole, "offset");  // hole
  ExpectRefused(Raw(Two(4, 8, 8, 16), 16), Reason::kOverlapOrHole, "offset");   // at the start
  ExpectRefused(Raw(Two(0, 8, 8, 16), 20), Reason::kOverlapOrHole, "offset");   // at the end
  ExpectRefused(Raw(Two(0, 8, 8, 16), 12), Reason::kTruncated, "truncated");
}

TEST(Safetensors, TensorCountIsCapped) {
  ExpectRefused(Raw(Two(0, 8, 8, 16), 16), Reason::kHeaderInvalid, "1 tensors", {.max_tensors = 1});
}

TEST(Safetensors, EncodeIsDeterministicAlignedAndReadable) {
  const std::string a(12, 'a'), b(6, 'b');
  const TensorView ta = {.name = "a", .dtype = DType::kF32, .shape = {3}, .bytes = Bytes(a)};
  const TensorView tb = {.name = "b", .dtype = DType::kF16, .shape = {3, 1}, .bytes = Bytes(b)};
  const std::string file = EncodeSafetensors({tb, ta}, {{"k", "v"}});
  EXPECT_EQ(file, EncodeSafetensors({ta, tb}, {{"k", "v"}}));
  EXPECT_EQ((file.size() - a.size() - b.size()) % 64, 0u);
  const auto parsed = SafetensorsFile::Parse(Bytes(file), "x", {});
  ASSERT_TRUE(parsed.ok()) << parsed.status();
  EXPECT_EQ(parsed->metadata().at("k"), "v");
  EXPECT_EQ(parsed->Find("b")->shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(std::memcmp(parsed->Find("b")->bytes.data(), b.data(), b.size()), 0);
  EXPECT_TRUE(ParseRaw(EncodeSafetensors({}, {})).ok());
}

class SafetensorsDir : public testing::Test {
 protected:
  void SetUp() override {
    dir_ =
        std::filesystem::path(testing::TempDir()) / ("safetensors_test" + std::to_string(getpid()));
    std::filesystem::remove_all(dir_);
    std::filesystem::create_directories(dir_);
  }
  void Write(const std::string& name, const std::string& bytes) {
    std::ofstream(dir_ / name, std::ios::binary) << bytes;
  }
  static std::string FileWith(const std::string& tensor) {
    return Raw("{\"" + tensor + R"(":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})", 4);
  }
  std::filesystem::path dir_;
};

TEST_F(SafetensorsDir, OpenMapsAndOutlivesTheFilesName) {
  Write("x.safetensors", FileWith("t"));
  auto file = SafetensorsFile::Open(dir_ / "x.safetensors", {});
  ASSERT_TRUE(file.ok()) << file.status();
  std::filesystem::remove(dir_ / "x.safetensors");
  const SafetensorsFile moved = *std::move(file);
  EXPECT_EQ(moved.Find("t")->bytes[3], 0);
  EXPECT_EQ(SafetensorsFile::Open(dir_ / "y.safetensors", {}).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_FALSE(SafetensorsFile::Open(dir_, {}).ok());
  Write("empty.safetensors", "");
  EXPECT_FALSE(SafetensorsFile::Open(dir_ / "empty.safetensors", {}).ok());
}

TEST_F(SafetensorsDir, SingleFileModel) {
  Write("model.safetensors", FileWith("t"));
  const auto model = ShardedSafetensors::Open(dir_, FileUse::kParts);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_NE(model->Find("t"), nullptr);
  EXPECT_EQ(model->Find("u"), nullptr);
}

TEST_F(SafetensorsDir, ShardsFollowTheIndex) {
  const auto absent = ShardedSafetensors::Open(dir_, FileUse::kParts);
  ASSERT_FALSE(absent.ok());
  EXPECT_EQ(absent.status().code(), absl::StatusCode::kNotFound);
  Write("m-1.safetensors", FileWith("t"));
  Write("m-2.safetensors", FileWith("u"));
  const std::string index = "model.safetensors.index.json";
  Write(index, R"({"weight_map": {"t": "m-1.safetensors", "u": "m-2.safetensors"}})");
  const auto model = ShardedSafetensors::Open(dir_, FileUse::kParts);
  ASSERT_TRUE(model.ok()) << model.status();
  EXPECT_EQ(model->tensors().size(), 2u);
  EXPECT_EQ(model->Find("u")->name, "u");
  for (const char* bad :
       {R"({"weight_map": {"t": "m-1.safetensors", "v": "m-2.safetensors"}})",
        R"({"weight_map": {"t": "m-3.safetensors"}})", R"({"weight_map": {"t": "../x"}})",
        R"({"weight_map": {"t": "m-1.safetensors", "t": "m-2.safetensors"}})",
        R"({"weight_map": {"t": 1}})", R"({})", "[]"}) {
    Write(index, bad);
    EXPECT_FALSE(ShardedSafetensors::Open(dir_, FileUse::kParts).ok()) << bad;
  }
}

}  // namespace
}  // namespace rootstock
