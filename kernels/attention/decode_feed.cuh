// What a warp of the decode kernel reads: its tiles of the block's chunks, in order, some ahead.
#pragma once

#include "kernels/attention/decode_ring.cuh"
#include "kernels/attention/decode_schedule.cuh"

namespace rootstock::kernels::cuda {

constexpr int kKeysAhead = 2, kValuesAhead = 1;  // tiles

// A layer's pages.
struct PageReader {
  const __nv_bfloat16* layer;  // of page 0
  size_t page_elements;
  const int32_t* page_ids;
  int page_tokens, kv_heads;
};

template <int kDim>
class TileFeed {
 public:
  using Ring = TileRing<kDim, kKeysAhead, kValuesAhead>;

  // `at`: the block's first chunk; end: where its share of the line ends.
  __device__ TileFeed(const PageReader& pages, const Schedule& schedule, int num_rows,
                      const Cursor& at, int end, void* ring)
      : pages_(pages),
        schedule_(schedule),
        num_rows_(num_rows),
        end_(end),
        row_stride_(pages.kv_heads * kDim),
        to_values_(pages.page_tokens * row_stride_),
        ahead_(at),
        ring_(ring, kWarps) {}

  // Before the wait for earlier kernels: copies all but this step's positions, the last of a row.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kKeysAhead; ++i) {
      fresh_[i] = false;
      if (InShare()) {
        places_[i] = Place(Find());
        fresh_[i] =
            places_[i].valid > 0 && Start() + places_[i].valid == schedule_.kv_len[ahead_.row];
        Advance(schedule_, num_rows_, pages_.kv_heads, ahead_);
      }
      key_slot_[i] = ring_.CopyKeys(places_[i], row_stride_, fresh_[i]);
      if (i >= kValuesAhead) continue;
      value_slot_[i] = ring_.CopyValues(places_[i], row_stride_, to_values_, fresh_[i]);
    }
    if (InShare()) pending_ = Find();
  }
  // After it.
  __device__ __forceinline__ void CopyFresh() {
#pragma unroll
    for (int i = 0; i < kKeysAhead; ++i) {
      if (!fresh_[i]) continue;
      ring_.CopyFreshKey(places_[i], row_stride_, key_slot_[i]);
      if (i >= kValuesAhead) continue;
      ring_.CopyFreshValue(places_[i], row_stride_, to_values_, value_slot_[i]);
    }
  }

  // The next tile's valid positions. Where there are any: TakeKeys and TakeValues; in any case
  // CopyKeys and CopyValues after them.
  __device__ __forceinline__ int Next() {
    const int valid = places_[0].valid;
#pragma unroll
    for (int i = 0; i + 1 < kKeysAhead; ++i) places_[i] = places_[i + 1];
    places_[kKeysAhead - 1] = Place(pending_);
    pending_.valid = 0;
    if (InShare()) {
      Advance(schedule_, num_rows_, pages_.kv_heads, ahead_);
      if (InShare()) pending_ = Find();
    }
    return valid;
  }
  __device__ __forceinline__ void TakeKeys(TileRegisters<kDim>& r) { ring_.TakeKeys(r); }
  __device__ __forceinline__ void TakeValues(TileRegisters<kDim>& r) { ring_.TakeValues(r); }
  __device__ __forceinline__ void CopyKeys() {
    ring_.CopyKeys(places_[kKeysAhead - 1], row_stride_);
  }
  __device__ __forceinline__ void CopyValues() {
    ring_.CopyValues(places_[kValuesAhead - 1], row_stride_, to_values_);
  }

 private:
  // A tile whose page id is on its way.
  struct Pending {
    int page = 0, offset = 0;  // elements within the page's keys
    int valid = 0;
  };

  __device__ bool InShare() const { return ahead_.place(schedule_) < end_; }
  __device__ int Start() const { return ahead_.chunk * kChunk + threadIdx.x / 32 * kTile; }
  __device__ __forceinline__ Pending Find() const {
    const int start = Start();
    Pending p;
    p.valid = min(max(schedule_.kv_len[ahead_.row] - start, 0), kTile);
    if (p.valid == 0) return p;
    p.page = pages_.page_ids[schedule_.page_begin[ahead_.row] + start / pages_.page_tokens];
    p.offset = start % pages_.page_tokens * row_stride_ + ahead_.kv_head * kDim;
    return p;
  }
  __device__ __forceinline__ TilePlace Place(const Pending& p) const {
    return {pages_.layer + p.page * pages_.page_elements + p.offset, p.valid};
  }

  const PageReader& pages_;
  const Schedule& schedule_;
  int num_rows_, end_;
  int row_stride_, to_values_;  // elements to the next position, and from a key to its value
  Cursor ahead_;
  Ring ring_;
  TilePlace places_[kKeysAhead];  // of the next tiles
  Pending pending_;               // the one after them
  bool fresh_[kKeysAhead];
  int key_slot_[kKeysAhead], value_slot_[kKeysAhead];
};

}  // namespace rootstock::kernels::cuda
