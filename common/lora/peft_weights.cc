#include "common/lora/peft_weights.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/peft_loader.h"

namespace rootstock {
namespace {

// Index of the first element whose magnitude, as bits, is at least `limit`; -1 for none.
template <typename Bits>
int64_t FirstAtLeast(const std::vector<uint8_t>& bytes, Bits magnitude_mask, Bits limit) {
  for (size_t i = 0; i < bytes.size() / sizeof(Bits); ++i) {
    Bits v = 0;
    std::memcpy(&v, bytes.data() + i * sizeof(Bits), sizeof(Bits));
    if ((v & magnitude_mask) >= limit) return static_cast<int64_t>(i);
  }
  return -1;
}

int64_t FirstNonfinite(const std::vector<uint8_t>& bytes, DType dtype) {
  switch (dtype) {
    case DType::kBF16:
      return FirstAtLeast<uint16_t>(bytes, 0x7fff, 0x7f80);
    case DType::kF16:
      return FirstAtLeast<uint16_t>(bytes, 0x7fff, 0x7c00);
    case DType::kF32:
      // From here on bf16 rounds to infinity.
      return FirstAtLeast<uint32_t>(bytes, 0x7fffffff, 0x7f7f8000);
  }
  return -1;
}

}  // namespace

absl::StatusOr<WeightsReader> WeightsReader::Create(const SteadyFile& file,
                                                    const PeftLimits& limits) {
  const SafetensorsLimits format = {.max_header_bytes = limits.max_header_bytes,
                                    .max_file_bytes = limits.max_bytes,
                                    .max_tensors = limits.max_tensors};
  std::array<uint8_t, kSafetensorsPrefixBytes> prefix{};
  const size_t n = std::min<uint64_t>(prefix.size(), file.size());
  RETURN_IF_ERROR(file.ReadAt(0, {prefix.data(), n}));
  const auto header_bytes =
      SafetensorsHeaderBytes({prefix.data(), n}, file.size(), file.name(), format);
  if (!header_bytes.ok()) {
    if (LooksPickled({prefix.data(), n})) {
      return InvalidField(Reason::kPickle, file.name(), "",
                          "is a pickle or an archive under another name and is never read");
    }
    return header_bytes.status();
  }
  std::vector<uint8_t> json(*header_bytes);
  RETURN_IF_ERROR(file.ReadAt(kSafetensorsPrefixBytes, json));
  WeightsReader out(file);
  out.data_begin_ = kSafetensorsPrefixBytes + *header_bytes;
  ASSIGN_OR_RETURN(out.header_, ParseSafetensorsHeader(json, file.size() - out.data_begin_,
                                                       file.name(), format));
  return out;
}

absl::StatusOr<std::vector<uint8_t>> WeightsReader::Read(const TensorInfo& tensor,
                                                         const std::string& module) const {
  std::vector<uint8_t> bytes(tensor.bytes());
  RETURN_IF_ERROR(file_->ReadAt(data_begin_ + tensor.begin, bytes));
  if (const int64_t at = FirstNonfinite(bytes, tensor.dtype); at >= 0) {
    return InvalidField(Reason::kNonfinite, "tensor", tensor.name,
                        absl::StrCat("element ", at, " of ", module, " is not a finite number"));
  }
  return bytes;
}

}  // namespace rootstock
