// Where an adapter's numbers lie in pages: pure arithmetic, the same on both sides (PROTOCOL §6).
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "common/base/dtype.h"
#include "common/lora/lora_spec.h"
#include "common/model/model_spec.h"
#include "common/tp/tp.h"

namespace rootstock {

// The slab of each tp_rank: num_pages equal pages, page 0 is scratch. Equal on all ranks.
struct PageGeometry {
  uint32_t num_pages = 0;
  uint32_t page_bytes = 0;   // multiple of 128
  uint32_t page_tokens = 0;  // tokens whose K and V of all layers one page holds
  friend bool operator==(const PageGeometry&, const PageGeometry&) = default;
};

// Bytes of K and V of one token, all layers, on the tp_rank with the most KV heads.
uint64_t KvBytesPerToken(const ModelSpec& model, const TpPlan& tp, DType dtype);

enum class LoraSharding : uint8_t { kReplicated = 0, kFullySharded = 1 };
// "replicated", "fully-sharded"
const char* LoraShardingName(LoraSharding sharding);

constexpr uint32_t kRowAlignment = 128;  // bytes; rows start on it

enum class LoraRole : uint8_t { kA, kB };

// One matrix on one tp_rank: `rows` rank components of `length` elements each.
// A: [rows, length] = lora_A[rank_begin.., in_begin..]; B: transposed, [rows, length] =
// lora_B[out_begin.., rank_begin..]^T.
struct LayoutEntry {
  int layer = 0;
  Module module = Module::kQ;
  LoraRole role = LoraRole::kA;
  Range ranks;             // lora_rank components held here
  Range elements;          // of the module's in (A) or out (B) features held here
  uint32_t first_row = 0;  // index of its first row in the row table
  friend bool operator==(const LayoutEntry&, const LayoutEntry&) = default;
};

// Place of a row: page index within the adapter's page list and byte offset in that page.
struct RowPlace {
  uint32_t page = 0;
  uint32_t offset = 0;
  friend bool operator==(const RowPlace&, const RowPlace&) = default;
};

// Layer-major list of entries; within a layer by module, A before B. Immutable, thread-safe.
class AdapterLayout {
 public:
  // kInvalidArgument/row_too_long when a row does not fit a page.
  static absl::StatusOr<AdapterLayout> Create(const ModelSpec& model, const LoraSpec& lora,
                                              const TpPlan& tp, LoraSharding sharding, DType dtype,
                                              uint32_t page_bytes);

  // Hash of everything placement depends on; equal inputs give equal ids on both sides.
  uint64_t id() const { return id_; }
  DType dtype() const { return dtype_; }
  LoraSharding sharding() const { return sharding_; }
  int tp_size() const { return static_cast<int>(entries_.size()); }
  // Pages the adapter takes on every tp_rank: the largest count over ranks.
  uint32_t num_pages() const { return num_pages_; }
  // Bytes of its rows on one tp_rank, before page rounding.
  uint64_t row_bytes(int tp_rank) const { return row_bytes_[tp_rank]; }
  const std::vector<LayoutEntry>& entries(int tp_rank) const { return entries_[tp_rank]; }
  // One place a row, indexed by LayoutEntry::first_row + r.
  const std::vector<RowPlace>& rows(int tp_rank) const { return rows_[tp_rank]; }

 private:
  uint64_t id_ = 0;
  DType dtype_ = DType::kF32;
  LoraSharding sharding_ = LoraSharding::kReplicated;
  uint32_t num_pages_ = 0;
  std::vector<uint64_t> row_bytes_;
  std::vector<std::vector<LayoutEntry>> entries_;
  std::vector<std::vector<RowPlace>> rows_;
};

}  // namespace rootstock
