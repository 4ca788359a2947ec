#include "common/layout/adapter_layout.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "common/layout/row_padding.h"

namespace rootstock {
namespace {

constexpr char kIdVersion[] = "layout2";  // raise when placement changes

uint64_t RoundUp(uint64_t n, uint64_t to) { return (n + to - 1) / to * to; }

// The columns of DESIGN §6's table: which part of A and B of `module` a tp_rank holds.
void AppendEntries(const ModelSpec& model, const LoraModule& module, const TpPlan& tp, int tp_rank,
                   LoraSharding sharding, std::vector<LayoutEntry>& out) {
  const Module m = module.module;
  const bool row_parallel = IsRowParallel(m);
  const bool fully = sharding == LoraSharding::kFullySharded;
  const Range all_ranks = {0, module.lora_rank};
  const Range shard = tp.sharded_features(tp_rank, m);
  LayoutEntry a = {.layer = module.layer, .module = m, .role = LoraRole::kA, .ranks = all_ranks};
  LayoutEntry b = {.layer = module.layer, .module = m, .role = LoraRole::kB, .ranks = all_ranks};
  if (row_parallel) {
    a.elements = shard;
    b.elements = fully ? LoraOutputSlice(model.out_features(m), tp.tp_size(), tp_rank)
                       : Range{0, model.out_features(m)};
  } else {
    if (fully) {
      a.ranks = LoraPieceRange(module.lora_rank, tp.tp_size(),
                               LoraPieceOf(module.layer, m, tp.tp_size(), tp_rank));
    }
    a.elements = {0, model.in_features(m)};
    b.elements = shard;
  }
  out.push_back(a);
  out.push_back(b);
}

// Puts rows one after the other; none crosses a page. One tp_rank's pages.
class Cursor {
 public:
  explicit Cursor(uint32_t page_bytes) : page_bytes_(page_bytes) {}

  // `bytes` ≤ page_bytes.
  RowPlace Put(uint64_t bytes) {
    if (bytes == 0) return {};
    uint64_t at = RoundUp(end_, kRowAlignment);
    if (num_pages_ == 0 || at + bytes > page_bytes_) {
      ++num_pages_;
      at = 0;
    }
    end_ = at + bytes;
    return {num_pages_ - 1, static_cast<uint32_t>(at)};
  }
  uint32_t num_pages() const { return num_pages_; }

 private:
  const uint64_t page_bytes_;
  uint32_t num_pages_ = 0;
  uint64_t end_ = 0;  // within the last page
};

void AppendNumbers(std::string& text, const LayoutEntry& e) {
  absl::StrAppend(&text, e.layer, ",", static_cast<int>(e.module), ",", static_cast<int>(e.role),
                  ",", e.ranks.begin, ",", e.ranks.end, ",", e.elements.begin, ",", e.elements.end,
                  ";");
}

}  // namespace

const char* LoraShardingName(LoraSharding sharding) {
  return sharding == LoraSharding::kFullySharded ? "fully-sharded" : "replicated";
}

uint64_t KvBytesPerToken(const ModelSpec& model, const TpPlan& tp, DType dtype) {
  return uint64_t{2} * model.num_layers * tp.max_kv_heads() * model.head_dim * DTypeBytes(dtype);
}

absl::StatusOr<AdapterLayout> AdapterLayout::Create(const ModelSpec& model, const LoraSpec& lora,
                                                    const TpPlan& tp, LoraSharding sharding,
                                                    DType dtype, uint32_t page_bytes) {
  if (page_bytes == 0 || page_bytes % kRowAlignment != 0) {
    return InvalidField(Reason::kInvalidArgument, "page_bytes", absl::StrCat(page_bytes),
                        absl::StrCat("must be a multiple of ", kRowAlignment));
  }
  AdapterLayout out;
  out.dtype_ = dtype;
  out.sharding_ = sharding;
  std::string id_text = absl::StrCat(kIdVersion, ";", tp.tp_size(), ",", static_cast<int>(sharding),
                                     ",", static_cast<int>(dtype), ",", page_bytes, ";");
  for (int tp_rank = 0; tp_rank < tp.tp_size(); ++tp_rank) {
    std::vector<LayoutEntry> entries;
    entries.reserve(2 * lora.modules.size());
    for (const LoraModule& m : lora.modules) {
      AppendEntries(model, m, tp, tp_rank, sharding, entries);
    }
    std::vector<RowPlace> rows;
    Cursor cursor(page_bytes);
    uint64_t row_bytes = 0;
    for (LayoutEntry& e : entries) {
      const uint64_t bytes = RoundUp(e.elements.size() * DTypeBytes(dtype), kRowPadding);
      if (bytes > page_bytes) {
        return InvalidField(
            Reason::kRowTooLong, ModulePath(e.layer, e.module), absl::StrCat(e.elements.size()),
            absl::StrCat("a row of ", e.elements.size(), " ", DTypeName(dtype), " elements takes ",
                         bytes, " bytes, a page has ", page_bytes));
      }
      e.first_row = static_cast<uint32_t>(rows.size());
      for (int r = 0; r < e.ranks.size(); ++r) rows.push_back(cursor.Put(bytes));
      row_bytes += bytes * e.ranks.size();
      AppendNumbers(id_text, e);
    }
    out.num_pages_ = std::max(out.num_pages_, cursor.num_pages());
    out.row_bytes_.push_back(row_bytes);
    out.entries_.push_back(std::move(entries));
    out.rows_.push_back(std::move(rows));
  }
  const Digest digest = Sha256Of(id_text);
  for (int i = 0; i < 8; ++i) out.id_ = out.id_ << 8 | digest.bytes[i];
  return out;
}

}  // namespace rootstock
