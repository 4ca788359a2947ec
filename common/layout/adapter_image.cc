#include "common/layout/adapter_image.h"

#include <cmath>
#include <cstring>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "common/base/status.h"
#include "common/layout/row_padding.h"

namespace rootstock {
namespace {

// Puts element `i` of a row that begins at `row`; false when it is not finite.
template <DType kTo>
bool Store(std::byte* row, size_t i, float v) {
  if constexpr (kTo == DType::kF32) {
    std::memcpy(row + 4 * i, &v, 4);
    return std::isfinite(v);
  } else {
    const uint16_t bits = FloatToBF16(v);
    std::memcpy(row + 2 * i, &bits, 2);
    return (bits & 0x7f80) != 0x7f80;
  }
}

// A: row r of the entry is lora_A[ranks.begin + r, elements].
template <DType kTo>
bool WriteA(const TensorView& a, const LayoutEntry& e, std::span<std::byte* const> rows) {
  const size_t in = static_cast<size_t>(a.shape[1]);
  bool finite = true;
  for (int r = 0; r < e.ranks.size(); ++r) {
    const size_t from = static_cast<size_t>(e.ranks.begin + r) * in + e.elements.begin;
    for (int i = 0; i < e.elements.size(); ++i) {
      finite &= Store<kTo>(rows[r], i, LoadFloat(a.bytes.data(), a.dtype, from + i));
    }
  }
  return finite;
}

// B: row r of the entry is lora_B[elements, ranks.begin + r]; the file is read in its own order.
template <DType kTo>
bool WriteB(const TensorView& b, const LayoutEntry& e, std::span<std::byte* const> rows) {
  const size_t lora_rank = static_cast<size_t>(b.shape[1]);
  bool finite = true;
  for (int i = 0; i < e.elements.size(); ++i) {
    const size_t from = static_cast<size_t>(e.elements.begin + i) * lora_rank + e.ranks.begin;
    for (int r = 0; r < e.ranks.size(); ++r) {
      finite &= Store<kTo>(rows[r], i, LoadFloat(b.bytes.data(), b.dtype, from + r));
    }
  }
  return finite;
}

absl::Status Mismatch(const std::string& what) {
  return InvalidField(Reason::kDigestMismatch, "layout", what, "is not of this adapter");
}

absl::Status WriteEntry(const TensorView& t, const LayoutEntry& e, const AdapterLayout& layout,
                        int tp_rank, std::span<std::byte* const> pages) {
  const bool is_a = e.role == LoraRole::kA;
  const int64_t ranks = is_a ? t.shape[0] : t.shape[1];
  const int64_t elements = is_a ? t.shape[1] : t.shape[0];
  if (e.ranks.end > ranks || e.elements.end > elements) return Mismatch(t.name);
  if (e.elements.size() == 0) return absl::OkStatus();
  const size_t bytes = e.elements.size() * DTypeBytes(layout.dtype());
  const size_t padding = (kRowPadding - bytes % kRowPadding) % kRowPadding;
  std::vector<std::byte*> rows(e.ranks.size());
  for (size_t r = 0; r < rows.size(); ++r) {
    const RowPlace place = layout.rows(tp_rank)[e.first_row + r];
    rows[r] = pages[place.page] + place.offset;
    std::memset(rows[r] + bytes, 0, padding);
  }
  const bool f32 = layout.dtype() == DType::kF32;
  const bool finite =
      is_a ? (f32 ? WriteA<DType::kF32>(t, e, rows) : WriteA<DType::kBF16>(t, e, rows))
           : (f32 ? WriteB<DType::kF32>(t, e, rows) : WriteB<DType::kBF16>(t, e, rows));
  if (finite) return absl::OkStatus();
  return InvalidField(Reason::kNonfinite, "tensor", t.name,
                      absl::StrCat("is not finite in ", DTypeName(layout.dtype())));
}

}  // namespace

absl::Status WriteTensorRows(const LoraSpec& spec, size_t tensor, const TensorView& view,
                             const AdapterLayout& layout, int tp_rank,
                             std::span<std::byte* const> pages) {
  if (layout.dtype() == DType::kF16) {
    return InvalidField(Reason::kDtype, "layout", "f16", "pages hold f32 or bf16");
  }
  const auto& entries = layout.entries(tp_rank);
  if (entries.size() != 2 * spec.modules.size()) return Mismatch("entries");
  if (pages.size() < layout.num_pages()) return Mismatch("pages");
  const LoraModule& m = spec.modules[tensor / 2];
  const LayoutEntry& e = entries[tensor];
  const LoraRole role = tensor % 2 == 0 ? LoraRole::kA : LoraRole::kB;
  if (e.layer != m.layer || e.module != m.module || e.role != role) return Mismatch("entries");
  return WriteEntry(view, e, layout, tp_rank, pages);
}

absl::Status WriteAdapterRows(const CanonicalAdapter& adapter, const AdapterLayout& layout,
                              int tp_rank, std::span<std::byte* const> pages) {
  for (size_t i = 0; i < adapter.modules().size(); ++i) {
    const CanonicalModule& module = adapter.modules()[i];
    RETURN_IF_ERROR(WriteTensorRows(adapter.spec(), 2 * i, module.a, layout, tp_rank, pages));
    RETURN_IF_ERROR(WriteTensorRows(adapter.spec(), 2 * i + 1, module.b, layout, tp_rank, pages));
  }
  return absl::OkStatus();
}

}  // namespace rootstock
