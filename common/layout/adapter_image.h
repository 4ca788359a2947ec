// Page images: an adapter's canonical tensors written to the places its layout gives them.
#pragma once

#include <cstddef>
#include <span>

#include "absl/status/status.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/canonical.h"

namespace rootstock {

// Writes every row of `tp_rank`: converted to the layout's type (rounded once, to nearest even), B
// transposed, padded with zeros to 16 bytes. pages[i] is the adapter's page i, of the layout's
// page_bytes; what lies between rows is left as it is. Reads only this tp_rank's share of the file.
// kInvalidArgument: digest_mismatch when `layout` is not of this adapter, dtype for a layout in
// f16, nonfinite for a number that is not finite after rounding (pages are then partly written).
absl::Status WriteAdapterRows(const CanonicalAdapter& adapter, const AdapterLayout& layout,
                              int tp_rank, std::span<std::byte* const> pages);

// One tensor of it alone, 2i for A of spec.modules[i] and 2i + 1 for its B, in any order.
absl::Status WriteTensorRows(const LoraSpec& spec, size_t tensor, const TensorView& view,
                             const AdapterLayout& layout, int tp_rank,
                             std::span<std::byte* const> pages);

}  // namespace rootstock
