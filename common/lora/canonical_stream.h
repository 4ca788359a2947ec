// A canonical file as it comes, never whole in memory.
#pragma once

#include <cstdint>
#include <functional>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "common/base/blob_sink.h"
#include "common/lora/canonical.h"

namespace rootstock {

// Takes the file in pieces of any size; holds its header and one tensor at a time. Not thread-safe.
class CanonicalStream {
 public:
  // Once, when the header has come and is checked against the base model.
  using Begin = std::function<absl::Status(const LoraSpec& spec)>;
  // Every tensor once, in the file's order: 2i is A of spec.modules[i], 2i + 1 its B. The view is
  // valid during the call.
  using Take = std::function<absl::Status(size_t tensor, const TensorView& view)>;

  // `model` outlives it.
  CanonicalStream(const ModelSpec& model, Begin begin, Take take)
      : model_(model), begin_(std::move(begin)), take_(std::move(take)) {}

  // Into this, which outlives it. Errors: CanonicalAdapter::Parse's and those of the two calls;
  // truncated for more bytes than were said.
  BlobSink sink();
  // kInvalidArgument/truncated unless all of it has come.
  absl::Status CheckComplete() const;

 private:
  enum class Part { kPrefix, kHeader, kTensors };
  absl::Status Write(std::string_view bytes);
  // With all wanted_ bytes of the part in held_.
  absl::Status EndPart();
  absl::Status ReadHeader();
  // No tensor is empty: a rank is at least 1.
  void WantTensor();

  struct Expected {
    TensorView view;  // without bytes
    uint64_t begin = 0, bytes = 0;
    size_t tensor = 0;
  };

  const ModelSpec& model_;
  const Begin begin_;
  const Take take_;
  uint64_t file_bytes_ = 0;
  Part part_ = Part::kPrefix;
  uint64_t wanted_ = 0;
  std::vector<uint8_t> held_;
  std::vector<Expected> tensors_;  // in the file's order
  size_t next_ = 0;
};

}  // namespace rootstock
