// Where to cut a row: its k highest logits, or the heaviest weights that hold a given mass. Digits
// of the values' bits from the highest down, a histogram for each, merged over the group's blocks.
#pragma once

#include "kernels/sampler/row_scan.cuh"

namespace rootstock::kernels::cuda {

// Logits by count. Bins hold how many.
struct ByCount {
  static constexpr int kBits = 32, kDigit = 11;
  __device__ static uint32_t Key(float v) { return OrderedKey(v); }
  __device__ static void Put(uint32_t* histogram, uint32_t bin, uint32_t) {
    atomicAdd(histogram + bin, 1u);
  }
  static constexpr int kWords = 1;  // of a bin
  __device__ static double Amount(uint64_t bin, uint32_t) { return static_cast<double>(bin); }
  __device__ static double Each(uint32_t) { return 1.0; }  // of one value with that key
  __device__ static bool Single(double amount, uint32_t) { return amount == 1.0; }
};

// Weights in [0, 1] by mass. Those of a bin have one exponent, so a bin holds the exact sum of
// their mantissas, whatever the order of the additions.
struct ByMass {
  static constexpr int kBits = 30, kDigit = 10;
  __device__ static uint32_t Key(float w) { return __float_as_uint(w); }
  __device__ static uint32_t Mantissa(uint32_t key) {
    return (key & 0x7fffffu) | (key >> 23 ? 0x800000u : 0u);
  }
  __device__ static double Each(uint32_t key) { return Amount(Mantissa(key), key); }
  __device__ static void Put(uint32_t* histogram, uint32_t bin, uint32_t key) {
    const uint32_t mantissa = Mantissa(key);
    const uint32_t old = atomicAdd(histogram + bin, mantissa);
    if (old + mantissa < old) atomicAdd(histogram + (1 << kDigit) + bin, 1u);  // carry
  }
  static constexpr int kWords = 2;
  // 2^(exponent of the mantissa's last bit)
  __device__ static double Unit(uint32_t key) {
    const uint64_t exponent = max(key >> 23, 1u) + (1023 - 150);
    return __longlong_as_double(static_cast<long long>(exponent << 52));
  }
  __device__ static double Amount(uint64_t bin, uint32_t key) {
    return static_cast<double>(bin) * Unit(key);
  }
  // Two normal numbers of one exponent sum to more than either can be.
  __device__ static bool Single(double amount, uint32_t key) {
    return key >> 23 != 0 && amount < Unit(key) * 0x1p24;
  }
};

// One digit of a search: keys whose bits above shift + width equal `prefix` fall into 2^width bins,
// the highest first.
struct Digit {
  int shift = 0;
  int width = 0;
  uint32_t prefix = 0;
  __device__ int bins() const { return 1 << width; }
  // Lowest key of a bin.
  __device__ uint32_t KeyOf(uint32_t bin) const {
    return ((prefix << width) + (bins() - 1 - bin)) << shift;
  }
};

template <typename By>
__device__ void FillHistogram(uint32_t* histogram, const Chunk& chunk, Digit digit,
                              uint32_t floor) {
  for (int b = threadIdx.x; b < kHistogram; b += kThreads) histogram[b] = 0;
  __syncthreads();
  const uint32_t first = digit.prefix << digit.width, last = digit.bins() - 1;
  ForEach(chunk, [&](float v, int) {
    const uint32_t key = By::Key(v);
    const uint32_t at = (key >> digit.shift) - first;
    if (key >= floor && at <= last) By::Put(histogram, last - at, key);
  });
}

// Of the digit's bins, the one where the running amount, from `before` on, reaches the goal. Every
// block sums a slice of the bins over the group. index −1: none.
template <typename By>
__device__ Crossing FindBin(RowGroup& group, Digit digit, double before, Goal goal) {
  uint32_t* histogram = group.shared().histogram;
  const int slice = digit.bins() / group.size();
  const auto amount = [&](int i) {
    const int bin = group.rank() * slice + i;
    uint64_t sum = histogram[bin];
    if (By::kWords == 2) sum += static_cast<uint64_t>(histogram[digit.bins() + bin]) << 32;
    return By::Amount(sum, digit.KeyOf(bin));
  };
  GroupSync();  // all histograms are complete
  double mine = 0.0;
  for (int i = threadIdx.x; i < slice; i += kThreads) {
    const int bin = group.rank() * slice + i;
    uint64_t sum = 0;
    for (int r = 0; r < group.size(); ++r) {
      const uint32_t* other = Peer(histogram, r);
      sum += other[bin];
      if (By::kWords == 2) sum += static_cast<uint64_t>(other[digit.bins() + bin]) << 32;
    }
    histogram[bin] = static_cast<uint32_t>(sum);  // nobody else reads this slice
    if (By::kWords == 2) histogram[digit.bins() + bin] = static_cast<uint32_t>(sum >> 32);
    mine += amount(i);
  }
  const double* totals = group.Gather(mine, Add());
  const Crossing block = FindBlock(totals, group.size(), before, goal);
  if (block.index < 0 || !goal.Reached(block.before + block.amount)) return Crossing();
  Crossing found;
  if (group.rank() == block.index && threadIdx.x < 32) {
    found = WarpFind(slice, block.before, goal, amount);
    found.index += block.index * slice;
  }
  return group.Publish(block.index, found);
}

// The shortest run of descending values, the lower id first of equals, whose amount (a count, or a
// mass) reaches `goal` > 0. Keys below `floor` are known to lie outside. keep_equals: all values
// equal to the last one stay too. A goal that is out of reach cuts nothing.
template <typename By>
__device__ Cut Select(RowGroup& group, const Chunk& chunk, uint32_t floor, double goal,
                      bool keep_equals) {
  double above = 0.0;
  Digit digit{.shift = By::kBits};
  for (;;) {
    digit.width = min(By::kDigit, digit.shift);
    digit.shift -= digit.width;
    FillHistogram<By>(group.shared().histogram, chunk, digit, floor);
    const Crossing bin = FindBin<By>(group, digit, above, {goal, false});
    if (bin.index < 0) return Cut();
    const uint32_t key = digit.KeyOf(bin.index);
    above = bin.before;
    // All of a bin that holds one value stays; so does all of it when its last value is the goal's.
    const bool whole = By::kWords == 1 && above + bin.amount == goal;
    if (whole || By::Single(bin.amount, key)) return {max(key, floor), INT_MAX};
    if (digit.shift == 0) {
      const double each = By::Each(key);
      const double equals = rint(bin.amount / each);
      const double wanted = fmin(fmax(ceil((goal - above) / each), 1.0), equals);
      if (keep_equals || wanted == equals) return {key, INT_MAX};
      const int last = FindById(
          group, chunk, [&](float v, int) { return By::Key(v) == key ? 1.0f : 0.0f; },
          [&](double) { return Goal{wanted, false}; });
      return {key, last};
    }
    digit.prefix = key >> digit.shift;
  }
}

}  // namespace rootstock::kernels::cuda
