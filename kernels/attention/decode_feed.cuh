// What a warp of the decode kernel reads: its tiles of the block's chunks, in order, some ahead.
#pragma once

#include "kernels/attention/decode_ring.cuh"
#include "kernels/attention/decode_schedule.cuh"

namespace rootstock::kernels::cuda {

// Tiles on their way.
template <int kDim>
struct Ahead {
  static constexpr int kKeys = 2, kValues = 1;
};

template <int kDim>
class TileFeed {
 public:
  static constexpr int kKeysAhead = Ahead<kDim>::kKeys, kValuesAhead = Ahead<kDim>::kValues;
  using Ring = TileRing<kDim, kKeysAhead, kValuesAhead>;

  // `at`: the block's first chunk; end: where its share of the line ends.
  __device__ TileFeed(const PageReader& pages, const Schedule& schedule, int num_rows,
                      const Cursor& at, int end, void* ring)
      : pages_(pages),
        schedule_(schedule),
        num_rows_(num_rows),
        end_(end),
        ahead_(at),
        ring_(ring, kWarps) {}

  // Before the wait for earlier kernels: copies tiles without this step's positions, the last of a
  // row.
  __device__ __forceinline__ void Begin() {
#pragma unroll
    for (int i = 0; i < kKeysAhead; ++i) {
      fresh_[i] = false;
      if (InShare()) {
        places_[i] = Find();
        fresh_[i] =
            places_[i].valid > 0 && Start() + places_[i].valid == schedule_.kv_len[ahead_.row];
        Advance(schedule_, num_rows_, pages_.kv_heads, ahead_);
      }
      key_slot_[i] = ring_.CopyKeys(pages_, places_[i], fresh_[i]);
      if (i >= kValuesAhead) continue;
      value_slot_[i] = ring_.CopyValues(pages_, places_[i], fresh_[i]);
    }
    if (InShare()) pending_ = Find();
  }
  // After it.
  __device__ __forceinline__ void CopyFresh() {
#pragma unroll
    for (int i = 0; i < kKeysAhead; ++i) {
      if (!fresh_[i]) continue;
      ring_.CopyKeysTo(key_slot_[i], pages_, places_[i]);
      if (i >= kValuesAhead) continue;
      ring_.CopyValuesTo(value_slot_[i], pages_, places_[i]);
    }
  }

  // The next tile's valid positions. Where there are any: TakeKeys and TakeValues; in any case
  // CopyKeys and CopyValues after them.
  __device__ __forceinline__ int Next() {
    const int valid = places_[0].valid;
#pragma unroll
    for (int i = 0; i + 1 < kKeysAhead; ++i) places_[i] = places_[i + 1];
    places_[kKeysAhead - 1] = pending_;
    pending_.valid = 0;
    if (InShare()) {
      Advance(schedule_, num_rows_, pages_.kv_heads, ahead_);
      if (InShare()) pending_ = Find();
    }
    return valid;
  }
  __device__ __forceinline__ void TakeKeys(TileRegisters<kDim>& r) { ring_.TakeKeys(r); }
  __device__ __forceinline__ void TakeValues(int valid, TileRegisters<kDim>& r) {
    ring_.TakeValues(valid, r);
  }
  __device__ __forceinline__ void CopyKeys() { ring_.CopyKeys(pages_, places_[kKeysAhead - 1]); }
  __device__ __forceinline__ void CopyValues() {
    ring_.CopyValues(pages_, places_[kValuesAhead - 1]);
  }

 private:
  __device__ bool InShare() const { return ahead_.place(schedule_) < end_; }
  __device__ int Start() const { return ahead_.chunk * kChunk + threadIdx.x / 32 * kTile; }
  // The page's id is on its way.
  __device__ __forceinline__ TilePlace Find() const {
    const int start = Start();
    TilePlace p;
    p.valid = min(max(schedule_.kv_len[ahead_.row] - start, 0), kTile);
    if (p.valid == 0) return p;
    const int page = pages_.PageOf(start / kTile);
    p.page = pages_.page_ids[schedule_.page_begin[ahead_.row] + page];
    p.token = start - page * pages_.page_tokens;
    p.kv_head = ahead_.kv_head;
    return p;
  }

  const PageReader& pages_;
  const Schedule& schedule_;
  int num_rows_, end_;
  Cursor ahead_;
  Ring ring_;
  TilePlace places_[kKeysAhead];  // of the next tiles
  TilePlace pending_;             // the one after them
  bool fresh_[kKeysAhead];
  int key_slot_[kKeysAhead], value_slot_[kKeysAhead];
};

}  // namespace rootstock::kernels::cuda
