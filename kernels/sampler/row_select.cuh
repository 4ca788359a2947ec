// Where to cut a row: its k highest logits, or the heaviest weights that hold a given mass. A range
// of keys is halved into bins over and over, a histogram merged over the group's blocks each time.
#pragma once

#include "kernels/sampler/row_gather.cuh"

namespace rootstock::kernels::cuda {

// Logits by count. Bins hold how many.
struct ByCount {
  static constexpr int kDigit = 10;
  static constexpr int kArrays = 1;  // of counters
  __device__ static uint32_t Key(float v) { return OrderedKey(v); }
  __device__ static float Value(uint32_t key) { return FromOrderedKey(key); }
  __device__ static void Put(uint32_t* histogram, uint32_t bin, uint32_t) {
    atomicAdd(histogram + bin, 1u);
  }
  __device__ static double Amount(uint64_t bin, uint32_t) { return static_cast<double>(bin); }
  __device__ static uint32_t Share(uint32_t) { return 1; }  // of one value with that key in its bin
  __device__ static double Each(uint32_t) { return 1.0; }   // the same as an amount
  __device__ static bool Single(double amount, uint32_t) { return amount == 1.0; }
  // No fewer than the values whose keys are `low` or more and that come to `amount`.
  __device__ static double Most(double amount, uint32_t) { return amount; }
};

// Weights in [0, 1] by mass. Those of a bin have one exponent, so a bin holds the exact sum of
// their mantissas, whatever the order of the additions.
struct ByMass {
  static constexpr int kDigit = 9;
  static constexpr int kArrays = 2;  // low and high bits
  static constexpr int kLowBits = 12;
  __device__ static uint32_t Key(float w) { return __float_as_uint(w); }
  __device__ static float Value(uint32_t key) { return __uint_as_float(key); }
  __device__ static uint32_t Mantissa(uint32_t key) {
    return (key & 0x7fffffu) | (key >> 23 ? 0x800000u : 0u);
  }
  // The low bits and the rest apart: neither sum overflows.
  __device__ static void Put(uint32_t* histogram, uint32_t bin, uint32_t key) {
    const uint32_t mantissa = Mantissa(key);
    atomicAdd(histogram + bin, mantissa & ((1 << kLowBits) - 1));
    atomicAdd(histogram + (1 << kDigit) + bin, mantissa >> kLowBits);
  }
  // 2^(exponent of the mantissa's last bit)
  __device__ static double Unit(uint32_t key) {
    const uint64_t exponent = max(key >> 23, 1u) + (1023 - 150);
    return __longlong_as_double(static_cast<long long>(exponent << 52));
  }
  __device__ static double Amount(uint64_t bin, uint32_t key) {
    return static_cast<double>(bin) * Unit(key);
  }
  __device__ static uint32_t Share(uint32_t key) { return Mantissa(key); }
  __device__ static double Each(uint32_t key) { return Amount(Mantissa(key), key); }
  // Two normal numbers of one exponent sum to more than either can be.
  __device__ static bool Single(double amount, uint32_t key) {
    return key >> 23 != 0 && amount < Unit(key) * 0x1p24;
  }
  __device__ static double Most(double amount, uint32_t low) { return amount / Each(low); }
};

// Bin i: the 2^shift keys down from high − (i << shift). high's low `shift` bits are ones, so that
// the keys of a bin share the bits above; keys below high − span are left out.
struct Range {
  uint32_t high = 0;
  uint32_t span = 0;
  int shift = 0;
  __device__ uint32_t HighOf(uint32_t bin) const { return high - (bin << shift); }
  __device__ uint32_t LowOf(uint32_t bin) const { return HighOf(bin) - ((1u << shift) - 1); }
};

template <typename By>
__device__ Range RangeOf(uint32_t highest, uint32_t floor) {
  Range range;
  range.shift = max(32 - __clz(highest - floor) - By::kDigit, 0);
  range.high = highest | ((1u << range.shift) - 1);
  if ((range.high - floor) >> range.shift >> By::kDigit != 0) {
    ++range.shift;
    range.high = highest | ((1u << range.shift) - 1);
  }
  range.span = range.high - floor;
  return range;
}

template <typename By>
__device__ void FillHistogram(const Chunk& chunk, Range range) {
  uint32_t* histogram = chunk.shared->histogram;
#pragma unroll 1
  for (int b = threadIdx.x; b < kHistogram; b += kThreads) histogram[b] = 0;
  __syncthreads();
  const auto put = [&](uint32_t below) {
    if (below <= range.span) By::Put(histogram, below >> range.shift, range.high - below);
  };
  ForEachFour(chunk, [&](const float4& v, int) {
    const uint32_t a = range.high - By::Key(v.x), b = range.high - By::Key(v.y),
                   c = range.high - By::Key(v.z), d = range.high - By::Key(v.w);
    if (min(min(a, b), min(c, d)) > range.span) return;
    put(a);
    put(b);
    put(c);
    put(d);
  });
}

// The bin where the running amount, from `before` on, reaches the goal. Every block sums a slice of
// the bins over the group. index −1: none.
template <typename By>
__device__ Crossing FindBin(RowGroup& group, const Chunk& chunk, Range range, double before,
                            Goal goal) {
  constexpr int kBins = 1 << By::kDigit;
  const int slice = kBins / group.size();
  const uint32_t* slices =
      group.PushHistogram(chunk.shared->histogram, chunk.shared->received, kBins, By::kArrays);
  // Nobody else reads this slice of the block's own.
  uint32_t* merged = chunk.shared->histogram + group.rank() * slice;
  const auto amount = [&](int i) {
    uint64_t sum = merged[i];
    if (By::kArrays == 2) sum += static_cast<uint64_t>(merged[kBins + i]) << 32;
    return By::Amount(sum, range.HighOf(group.rank() * slice + i));
  };
  double mine = 0.0;
#pragma unroll 1
  for (int i = threadIdx.x; i < slice; i += kThreads) {
    uint64_t sum = 0;
#pragma unroll 4
    for (int r = 0; r < group.size(); ++r) {
      sum += slices[r * kSlice + i];
      if constexpr (By::kArrays == 2) {
        sum += static_cast<uint64_t>(slices[r * kSlice + slice + i]) << By::kLowBits;
      }
    }
    merged[i] = static_cast<uint32_t>(sum);
    if (By::kArrays == 2) merged[kBins + i] = static_cast<uint32_t>(sum >> 32);
    mine += amount(i);
  }
  const double* totals = group.Gather(mine, Add());
  const Crossing block = FindBlock(totals, group.size(), before, goal);
  if (block.index < 0 || !goal.Reached(block.before + block.amount)) return Crossing();
  const int owner = static_cast<int>(block.index);
  Crossing found;
  if (group.rank() == owner && threadIdx.x < 32) {
    found = WarpFind(slice, block.before, goal, amount);
    found.index += owner * slice;
  }
  return group.Publish(owner, found);
}

constexpr int kFewInBin = 160;  // fewer cost less than another histogram
static_assert(kFewInBin <= kFew);

// The cut where the running amount, from `above` on, reaches the goal among the values of a bin
// with keys in [low, high], kFewInBin at most. Shares are integers: the list's order does not
// matter.
template <typename By>
__device__ Cut CutAmongFew(RowGroup& group, const Chunk& chunk, uint32_t low, uint32_t high,
                           double above, double goal) {
  auto* list = reinterpret_cast<uint64_t*>(chunk.shared->received);
  uint32_t* shares = chunk.shared->histogram;  // what it held is sent
  int& found_at = chunk.shared->count;
  const int n = GatherKept(group, chunk, {By::Value(low), INT_MAX}, list, By::Value(high));
  Crossing found;
  found.amount = By::Value(low);  // where rounding lets none reach it: all of the bin stays
  found.index = INT_MAX;
  if (group.rank() == 0) {
    const int i = threadIdx.x;
    const uint64_t mine = i < n ? list[i] : 0;
    const uint32_t share = By::Share(By::Key(EntryValue(mine)));
    if (i < n) shares[i] = share;
    if (i == 0) found_at = -1;
    __syncthreads();
    uint64_t higher = 0;
#pragma unroll 8
    for (int j = 0; j < n && i < n; ++j) higher += list[j] > mine ? shares[j] : 0u;
    if (i < n && above + By::Amount(higher, low) < goal &&
        above + By::Amount(higher + share, low) >= goal) {
      found_at = i;
    }
    __syncthreads();
    if (found_at >= 0) {
      found.amount = EntryValue(list[found_at]);
      found.index = EntryId(list[found_at]);
    }
  }
  found = group.Publish(0, found);
  return {static_cast<float>(found.amount), static_cast<int>(found.index)};
}

struct Selection {
  Cut cut;
  bool few = false;  // the caller's try took it; else the cut is exact
};

// The shortest run of descending values, the lower id first of equals, whose amount (a count, or a
// mass) reaches `goal` > 0. The highest key is known; keys below `floor` are known to lie outside.
// keep_equals: all values equal to the last one stay too. A goal that is out of reach cuts nothing.
// try_few(cut, most): a cut that keeps all that is looked for, and no more than `most` values where
// that is known (else −1); true ends the search.
template <typename By, typename TryFew>
__device__ Selection Select(RowGroup& group, const Chunk& chunk, uint32_t highest, uint32_t floor,
                            double goal, bool keep_equals, TryFew try_few) {
  double above = 0.0;
  bool first = true;
  Range range = RangeOf<By>(highest, floor);
#pragma unroll 1
  for (;;) {
    FillHistogram<By>(chunk, range);
    const Crossing bin = FindBin<By>(group, chunk, range, above, {goal, false});
    if (bin.index < 0) return Selection();
    const auto i = static_cast<uint32_t>(bin.index);
    const uint32_t low = range.LowOf(i);
    const uint32_t kept = max(low, floor);
    above = bin.before;
    const Cut whole_bin = {By::Value(kept), INT_MAX};
    // No value weighs, or counts, more than 1.
    if (above + bin.amount <= kFew && (By::kArrays == 1 || first)) {
      if (try_few(whole_bin)) return {whole_bin, true};
    }
    // All of a bin that holds one value stays; so does all of it when its last value is the goal's.
    const bool whole = By::kArrays == 1 && above + bin.amount == goal;
    if (whole || By::Single(bin.amount, low)) return {whole_bin, false};
    first = false;
    if (range.shift > 0 && By::Most(bin.amount, kept) <= kFewInBin) {
      const Cut cut = CutAmongFew<By>(group, chunk, kept, range.HighOf(i), above, goal);
      return {{cut.above, keep_equals ? INT_MAX : cut.last_id}, false};
    }
    if (range.shift == 0) {
      const double each = By::Each(low);
      const double equals = rint(bin.amount / each);
      const double wanted = fmin(fmax(ceil((goal - above) / each), 1.0), equals);
      const float value = By::Value(low);
      if (keep_equals || wanted == equals) return {{value, INT_MAX}, false};
      const int last = FindById(
          group, chunk, [&](float v, int) { return v == value ? 1.0f : 0.0f; },
          [&](double) { return Goal{wanted, false}; });
      return {{value, last}, false};
    }
    range.high = range.HighOf(i);
    range.span = range.high - kept;
    range.shift = max(range.shift - By::kDigit, 0);
  }
}

}  // namespace rootstock::kernels::cuda
