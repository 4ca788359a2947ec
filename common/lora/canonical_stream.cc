#include "common/lora/canonical_stream.h"

#include <algorithm>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/canonical_check.h"

namespace rootstock {

BlobSink CanonicalStream::sink() {
  return {.begin =
              [this](uint64_t total_bytes) {
                file_bytes_ = total_bytes;
                wanted_ = std::min(total_bytes, kSafetensorsPrefixBytes);
                return wanted_ == 0 ? EndPart() : absl::OkStatus();
              },
          .write = [this](std::string_view bytes) { return Write(bytes); }};
}

absl::Status CanonicalStream::Write(std::string_view bytes) {
  while (!bytes.empty()) {
    if (wanted_ == 0) {
      return InvalidField(Reason::kTruncated, kCanonicalName, "",
                          absl::StrCat("has more than its ", file_bytes_, " bytes"));
    }
    const size_t taken = std::min<uint64_t>(bytes.size(), wanted_ - held_.size());
    held_.insert(held_.end(), bytes.begin(), bytes.begin() + static_cast<ptrdiff_t>(taken));
    bytes.remove_prefix(taken);
    if (held_.size() == wanted_) RETURN_IF_ERROR(EndPart());
  }
  return absl::OkStatus();
}

absl::Status CanonicalStream::EndPart() {
  switch (part_) {
    case Part::kPrefix: {
      ASSIGN_OR_RETURN(wanted_, SafetensorsHeaderBytes(held_, file_bytes_, kCanonicalName, {}));
      held_.clear();
      part_ = Part::kHeader;
      return wanted_ == 0 ? EndPart() : absl::OkStatus();
    }
    case Part::kHeader:
      return ReadHeader();
    case Part::kTensors: {
      Expected& tensor = tensors_[next_++];
      tensor.view.bytes = held_;
      RETURN_IF_ERROR(take_(tensor.tensor, tensor.view));
      WantTensor();
      return absl::OkStatus();
    }
  }
  return absl::OkStatus();
}

absl::Status CanonicalStream::ReadHeader() {
  const uint64_t data_bytes = file_bytes_ - kSafetensorsPrefixBytes - held_.size();
  ASSIGN_OR_RETURN(const SafetensorsHeader header,
                   ParseSafetensorsHeader(held_, data_bytes, kCanonicalName, {}));
  ASSIGN_OR_RETURN(const CheckedCanonical<TensorInfo> checked,
                   CheckCanonical(header, header.metadata, header.tensors.size(), model_));
  for (size_t i = 0; i < checked.tensors.size(); ++i) {
    const TensorInfo& t = *checked.tensors[i];
    tensors_.push_back({{t.name, t.dtype, t.shape, {}}, t.begin, t.bytes(), i});
  }
  std::sort(tensors_.begin(), tensors_.end(),
            [](const Expected& a, const Expected& b) { return a.begin < b.begin; });
  part_ = Part::kTensors;
  RETURN_IF_ERROR(begin_(checked.spec));
  WantTensor();
  return absl::OkStatus();
}

void CanonicalStream::WantTensor() {
  held_.clear();
  wanted_ = next_ < tensors_.size() ? tensors_[next_].bytes : 0;
  if (wanted_ > held_.capacity()) held_.reserve(wanted_);
}

absl::Status CanonicalStream::CheckComplete() const {
  if (part_ == Part::kTensors && next_ == tensors_.size()) return absl::OkStatus();
  return InvalidField(Reason::kTruncated, kCanonicalName, "",
                      absl::StrCat("ended before its ", file_bytes_, " bytes"));
}

}  // namespace rootstock
