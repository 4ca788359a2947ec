// Files that somebody shortens, lengthens or writes while they are read.
#include "common/lora/peft_files.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <set>
#include <thread>
#include <tuple>

#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "common/lora/peft_weights.h"
#include "common/lora/test_dir.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

class SteadyFileTest : public testing::Test {
 protected:
  fs::path path() const { return dir_.path() / kPeftWeightsFile; }
  SteadyFile Open() const {
    auto file = SteadyFile::Open(*PeftDirectory::Open(dir_.path()), kPeftWeightsFile);
    EXPECT_TRUE(file.ok()) << file.status();
    return *std::move(file);
  }
  // Over what lies there, without making it shorter first.
  void Overwrite(uint64_t offset, const std::string& bytes) const {
    std::fstream file(path(), std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(offset));
    file << bytes;
  }
  static std::string Read(const SteadyFile& file, uint64_t offset, size_t bytes) {
    std::string out(bytes, '?');
    const absl::Status read =
        file.ReadAt(offset, {reinterpret_cast<uint8_t*>(out.data()), out.size()});
    return read.ok() ? out : std::string(read.message());
  }

  const TestDir dir_{"steady_file_test"};
};

// FAULTS F8: neither zeros nor what lay there before stand for bytes that are gone.
TEST_F(SteadyFileTest, F8AFileThatShrinksIsTruncatedWhereItEnds) {
  dir_.Write(kPeftWeightsFile, std::string(10000, 'a'));
  const SteadyFile file = Open();
  fs::resize_file(path(), 5000);
  EXPECT_EQ(file.size(), 10000u);
  EXPECT_EQ(Read(file, 4000, 1000), std::string(1000, 'a'));
  std::string out(2000, '?');
  const absl::Status cut = file.ReadAt(4000, {reinterpret_cast<uint8_t*>(out.data()), out.size()});
  EXPECT_EQ(GetErrorDetail(cut)->reason, Reason::kTruncated);
  EXPECT_NE(std::string(cut.message()).find("ends at byte 5000"), std::string::npos) << cut;
  fs::resize_file(path(), 0);
  EXPECT_EQ(GetErrorDetail(file.ReadAt(0, {reinterpret_cast<uint8_t*>(out.data()), 1}))->reason,
            Reason::kTruncated);
}

TEST_F(SteadyFileTest, WhatIsAppendedIsNoPartOfIt) {
  dir_.Write(kPeftWeightsFile, SafetensorsBytes(QvTensors(TestModel(), 8)));
  const SteadyFile file = Open();
  fs::resize_file(path(), file.size() + 4096);
  EXPECT_EQ(file.size() + 4096, fs::file_size(path()));
  EXPECT_TRUE(WeightsReader::Create(file, {}).ok());  // of the size that it had
}

TEST_F(SteadyFileTest, ARemovedOrReplacedFileIsReadOn) {
  dir_.Write(kPeftWeightsFile, std::string(100, 'a'));
  const SteadyFile file = Open();
  dir_.Write("other", std::string(50, 'b'));
  fs::rename(dir_.path() / "other", path());
  EXPECT_EQ(Read(file, 0, 100), std::string(100, 'a'));
  fs::remove(path());
  EXPECT_EQ(Read(file, 99, 1), "a");
}

// What is checked is the copy that is used, whenever the file was written.
TEST_F(SteadyFileTest, NumbersWrittenAfterTheHeaderWasReadAreCheckedAsTheyAre) {
  dir_.Write(kPeftWeightsFile, SafetensorsBytes(QvTensors(TestModel(), 8)));
  const SteadyFile file = Open();
  const auto reader = WeightsReader::Create(file, {});
  ASSERT_TRUE(reader.ok()) << reader.status();
  const TensorInfo& last = reader->header().tensors.back();
  const uint64_t at = file.size() - 4;
  Overwrite(at, std::string("\0\0\x80\x3f", 4));
  const auto one = reader->Read(last, "m");
  ASSERT_TRUE(one.ok()) << one.status();
  float value = 0;
  std::memcpy(&value, one->data() + one->size() - 4, 4);
  EXPECT_EQ(value, 1.0f);
  Overwrite(at, std::string("\0\0\xc0\x7f", 4));
  EXPECT_EQ(GetErrorDetail(reader->Read(last, "m").status())->reason, Reason::kNonfinite);
  fs::resize_file(path(), at);
  EXPECT_EQ(GetErrorDetail(reader->Read(last, "m").status())->reason, Reason::kTruncated);
}

// FAULTS F8, with a writer that does not stop: each load ends in finite numbers or in a reason.
TEST_F(SteadyFileTest, F8LoadsBesideAWriterEndInNumbersOrInAReason) {
  const std::string whole = SafetensorsBytes(QvTensors(TestModel(), 8));
  dir_.WriteAdapter(TestConfig(), QvTensors(TestModel(), 8));
  std::atomic<bool> over = false;
  std::atomic<uint64_t> cuts = 0;
  std::thread writer([&] {
    while (!over) {
      fs::resize_file(path(), whole.size() * (cuts % 100) / 100);
      Overwrite(0, whole);
      ++cuts;
    }
  });
  int refused = 0;
  while (refused < 20 || cuts < 200) {
    const auto adapter = LoadPeftAdapter(dir_.path(), TestModel(), {});
    if (adapter.ok()) {
      EXPECT_EQ(adapter->spec.modules.size(), 6u);
    } else {
      ASSERT_TRUE(GetErrorDetail(adapter.status()).has_value()) << adapter.status();
      ++refused;
    }
  }
  over = true;
  writer.join();
}

// Two directories of equal shapes that change places without end: no adapter has the one's config
// and the other's numbers.
TEST_F(SteadyFileTest, F8FilesOfADirectoryThatIsReplacedAreOfOneDirectory) {
  const fs::path one = dir_.path() / "one", two = dir_.path() / "two";
  std::set<std::string> whole;
  for (const auto& [path, alpha, seed] : {std::tuple{one, "16", 1}, std::tuple{two, "32", 2}}) {
    TestTensors tensors;
    AddPair(tensors, PeftPath(0, Module::kQ), 8, 64, 64, seed);
    fs::create_directory(path);
    const std::string config = TestConfig(std::string(R"("lora_alpha": )") + alpha);
    std::ofstream(path / "adapter_config.json") << config;
    std::ofstream(path / kPeftWeightsFile, std::ios::binary) << SafetensorsBytes(tensors);
    const auto adapter = LoadPeftAdapter(path, TestModel(), {});
    ASSERT_TRUE(adapter.ok()) << adapter.status();
    whole.insert(EncodeCanonical(*adapter, TestModel()));
  }
  ASSERT_EQ(whole.size(), 2u);
  std::atomic<bool> over = false;
  std::thread exchanging([&] {
    while (!over) renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, two.c_str(), RENAME_EXCHANGE);
  });
  std::set<std::string> read;
  for (int i = 0; i < 100000 && (i < 2000 || read.size() < 2); ++i) {
    const auto adapter = LoadPeftAdapter(one, TestModel(), {});
    if (!adapter.ok()) continue;
    read.insert(EncodeCanonical(*adapter, TestModel()));
  }
  over = true;
  exchanging.join();
  EXPECT_EQ(read, whole);
}

}  // namespace
}  // namespace rootstock
