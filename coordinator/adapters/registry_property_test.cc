// Random histories of the registry against RegistryModel.
#include <memory>
#include <vector>

#include "absl/strings/str_cat.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/registry_metrics.h"
#include "coordinator/adapters/testing/registry_model.h"
#include "coordinator/adapters/testing/scratch.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr int kSteps = 25'000;  // a seed; four seeds
constexpr int kBlobChecks = 50;

class RegistryProperty : public testing::TestWithParam<uint32_t> {
 protected:
  void Open() {
    registry_.reset();
    metrics_ = std::make_unique<Metrics>();
    auto opened = Registry::Open({.data_dir = scratch_.path() / "data",
                                  .base_name = "base",
                                  .unix_ms = [] { return int64_t{1}; },
                                  .metrics = std::make_shared<RegistryMetrics>(*metrics_)});
    ASSERT_TRUE(opened.ok()) << opened.status();
    registry_ = *std::move(opened);
  }

  // A request comes or goes: what it was bound to stays as it was.
  void Request() {
    if (requests_.size() > 8 || (!requests_.empty() && random_() % 2 == 0)) {
      const size_t gone = random_() % requests_.size();
      EXPECT_TRUE(registry_->ReadContent(requests_[gone]->digest).ok());
      requests_.erase(requests_.begin() + static_cast<std::ptrdiff_t>(gone));
      return;
    }
    const RegistryOp near = model_.Draw(random_);  // its name, and a version that may be there
    const std::string tenant = near.tenant;
    const std::string name = AdapterRef{near.name, random_() % 3 == 0 ? near.version : 0}.Text();
    const std::string id = absl::StrCat("request ", random_());
    const auto bound = registry_->Resolve(name, tenant, id);
    ASSERT_EQ(bound.ok() ? bound->resolved : "", model_.Resolve(tenant, name, id));
    if (bound.ok()) requests_.push_back(bound->content);
  }

  // Blobs are those of contents that a version or a request holds.
  void CheckBlobs() {
    registry_->AwaitRemovals();
    std::set<std::string> expected, found;
    for (const std::string& text : model_.Texts()) expected.insert(Sha256Of(text).Hex());
    for (const AdapterHandle& handle : requests_) expected.insert(handle->digest.Hex());
    for (const auto& entry : std::filesystem::directory_iterator(scratch_.path() / "data/blobs")) {
      found.insert(entry.path().filename());
    }
    ASSERT_EQ(found, expected);
  }

  ScratchDirectory scratch_{absl::StrCat("property-", GetParam())};
  std::mt19937 random_{GetParam()};
  std::unique_ptr<Metrics> metrics_;
  std::unique_ptr<Registry> registry_;
  RegistryModel model_;
  std::vector<AdapterHandle> requests_;
};

TEST_P(RegistryProperty, IsItsModelAfterEveryStepAndRestart) {
  Open();
  int done = 0;
  for (int step = 0; step < kSteps && !HasFailure(); ++step) {
    if (random_() % 3 == 0) Request();
    if (random_() % 1000 == 0) {
      requests_.clear();
      Open();
    }
    const RegistryOp op = model_.Draw(random_);
    const absl::StatusCode expected = model_.Apply(op);
    done += expected == absl::StatusCode::kOk;
    ASSERT_EQ(ApplyTo(*registry_, op), expected) << "step " << step << ": " << op.Text();
    ASSERT_EQ(ShowRegistry(*registry_), model_.Show()) << "step " << step << ": " << op.Text();
    if (step % kBlobChecks == 0) CheckBlobs();
  }
  EXPECT_GT(done, kSteps / 3);  // not all of it is refusals
  requests_.clear();
  CheckBlobs();
  EXPECT_EQ(registry_->CountLeaks(), 0u);
}

INSTANTIATE_TEST_SUITE_P(Seeds, RegistryProperty, testing::Values(1, 2, 3, 4));

}  // namespace
}  // namespace rootstock
