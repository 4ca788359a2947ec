#include "common/lora/canonical_stream.h"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "common/base/status.h"
#include "common/lora/peft_loader.h"
#include "common/lora/test_dir.h"

namespace rootstock {
namespace {

class CanonicalStreamTest : public testing::Test {
 protected:
  CanonicalStreamTest() {
    // Layers as numbers and as text have another order: the file's is not that of the modules.
    model_.num_layers = 11;
    dir_.WriteAdapter(TestConfig(), QvTensors(model_, 8));
    adapter_ = *LoadPeftAdapter(dir_.path(), model_, {});
    blob_ = EncodeCanonical(adapter_, model_);
  }
  // Gives `bytes` as a file of `said` bytes, in pieces.
  absl::Status Give(const std::string& bytes, uint64_t said, size_t piece) {
    spec_.reset();
    tensors_.clear();
    CanonicalStream stream(
        model_,
        [this](const LoraSpec& spec) {
          EXPECT_FALSE(spec_.has_value());
          spec_ = spec;
          return absl::OkStatus();
        },
        [this](size_t tensor, const TensorView& view) {
          EXPECT_FALSE(tensors_.contains(tensor));
          tensors_[tensor] = {view.bytes.begin(), view.bytes.end()};
          return absl::OkStatus();
        });
    const BlobSink sink = stream.sink();
    RETURN_IF_ERROR(sink.begin(said));
    for (size_t at = 0; at < bytes.size(); at += piece) {
      RETURN_IF_ERROR(sink.write(std::string_view(bytes).substr(at, piece)));
    }
    return stream.CheckComplete();
  }
  Reason ReasonOf(const std::string& bytes, uint64_t said) {
    const absl::Status status = Give(bytes, said, 100);
    const auto detail = GetErrorDetail(status);
    return detail ? detail->reason : Reason::kInternal;
  }

  ModelSpec model_ = TestModel();
  const TestDir dir_{"canonical_stream_test"};
  PeftAdapter adapter_;
  std::string blob_;
  std::optional<LoraSpec> spec_;
  std::map<size_t, std::vector<uint8_t>> tensors_;
};

TEST_F(CanonicalStreamTest, GivesEveryTensorWhateverThePieces) {
  for (const size_t piece : {size_t{1}, size_t{7}, size_t{4096}, blob_.size()}) {
    ASSERT_TRUE(Give(blob_, blob_.size(), piece).ok()) << piece;
    EXPECT_EQ(spec_, adapter_.spec);
    ASSERT_EQ(tensors_.size(), 2 * adapter_.weights.size());
    for (size_t i = 0; i < adapter_.weights.size(); ++i) {
      EXPECT_EQ(tensors_[2 * i], adapter_.weights[i].a);
      EXPECT_EQ(tensors_[2 * i + 1], adapter_.weights[i].b);
    }
  }
}

TEST_F(CanonicalStreamTest, RefusesWhatIsNoSuchFile) {
  const size_t whole = blob_.size();
  EXPECT_EQ(ReasonOf("", 0), Reason::kTruncated);
  EXPECT_EQ(ReasonOf(blob_.substr(0, whole - 1), whole), Reason::kTruncated);
  EXPECT_EQ(ReasonOf(blob_.substr(0, 50), whole), Reason::kTruncated);
  EXPECT_EQ(ReasonOf(blob_ + "x", whole), Reason::kTruncated);
  EXPECT_EQ(ReasonOf(blob_, whole - 1), Reason::kTruncated);
  EXPECT_EQ(ReasonOf(blob_, whole + 1), Reason::kOverlapOrHole);
  EXPECT_EQ(ReasonOf(std::string(200, '\xff'), 200), Reason::kHeaderTooLarge);
  model_.num_layers = 2;
  EXPECT_EQ(ReasonOf(blob_, whole), Reason::kBaseMismatch);
  EXPECT_TRUE(tensors_.empty());
}

TEST_F(CanonicalStreamTest, AnErrorOfATakerEndsIt) {
  CanonicalStream stream(
      model_, [](const LoraSpec&) { return absl::OkStatus(); },
      [](size_t, const TensorView&) { return absl::CancelledError("enough"); });
  EXPECT_TRUE(absl::IsCancelled(GiveAll(blob_, stream.sink())));
  CanonicalStream early(
      model_, [](const LoraSpec&) { return absl::CancelledError("no"); },
      [](size_t, const TensorView&) -> absl::Status {
        ADD_FAILURE() << "goes on";
        return absl::OkStatus();
      });
  EXPECT_TRUE(absl::IsCancelled(GiveAll(blob_, early.sink())));
}

}  // namespace
}  // namespace rootstock
