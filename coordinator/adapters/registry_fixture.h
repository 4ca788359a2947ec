// For tests: a registry of adapters whose content is a text.
#pragma once

#include <atomic>
#include <filesystem>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_metrics.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace rootstock {

// Content is the text of the directory's one file; "bad" is refused.
inline absl::StatusOr<LoadedAdapter> LoadText(const std::filesystem::path& directory) {
  std::ifstream in(directory / "text");
  std::ostringstream text;
  text << in.rdbuf();
  if (text.str() == "bad") return InvalidField(Reason::kNonfinite, "tensor", "x", "holds NaN");
  LoadedAdapter out;
  out.canonical = text.str();
  out.digest = Sha256Of(out.canonical);
  out.spec.modules = {{0, Module::kQ, 8, 0.1f}, {3, Module::kDown, 4, 2.0f}};
  out.receipt_json = "{\"text\":\"" + text.str() + "\"}";
  return out;
}

class RegistryTest : public testing::Test {
 protected:
  void SetUp() override {
    base_ = std::filesystem::path(testing::TempDir()) /
            absl::StrCat("registry_", testing::UnitTest::GetInstance()->current_test_info()->name(),
                         "_", getpid());
    std::filesystem::remove_all(base_);
    std::filesystem::create_directories(base_ / "root");
    for (const char* name : {"one", "two", "three", "bad"}) Write(name, name);
    Open();
  }
  void Write(const std::string& directory, const std::string& text) {
    std::filesystem::create_directories(base_ / "root" / directory);
    std::ofstream(base_ / "root" / directory / "text") << text;
  }
  void Open(AdapterLoader loader = LoadText) {
    registry_.reset();
    metrics_ = std::make_unique<Metrics>();
    auto opened = Registry::Open({.data_dir = base_ / "data",
                                  .adapter_root = base_ / "root",
                                  .base_name = "base-model",
                                  .loader = std::move(loader),
                                  .unix_ms = [this] { return now_.load(); },
                                  .metrics = std::make_shared<RegistryMetrics>(*metrics_)});
    ASSERT_TRUE(opened.ok()) << opened.status();
    registry_ = *std::move(opened);
  }
  bool BlobThere(const Digest& d) {
    if (registry_) registry_->AwaitRemovals();
    return std::filesystem::exists(base_ / "data" / "blobs" / d.Hex());
  }
  size_t Blobs() {
    if (registry_) registry_->AwaitRemovals();
    size_t n = 0;
    for ([[maybe_unused]] const auto& e :
         std::filesystem::directory_iterator(base_ / "data" / "blobs"))
      ++n;
    return n;
  }
  static Reason ReasonOf(const absl::Status& status) {
    const auto detail = GetErrorDetail(status);
    return detail ? detail->reason : Reason::kInternal;
  }
  // The content that `model` means: the text that was registered; "-" when there is none.
  std::string TextOf(const std::string& model, const std::string& request_id = "r") {
    const auto bound = registry_->Resolve(model, "default", request_id);
    if (!bound.ok()) return "-";
    std::ifstream in(base_ / "data" / "blobs" / bound->content->digest.Hex());
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
  }
  std::string ResolvedOf(const std::string& model, const std::string& request_id = "r") {
    const auto bound = registry_->Resolve(model, "default", request_id);
    return bound.ok() ? bound->resolved : "-";
  }
  void Shown(const std::string& line) {
    EXPECT_THAT(metrics_->Text(), testing::HasSubstr("\nrootstock_" + line + "\n"));
  }

  std::filesystem::path base_;
  std::atomic<int64_t> now_ = 1000;
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Registry> registry_;
};

}  // namespace rootstock
