// Collectives of a few megabytes between GPUs that reach each other's memory: the data is pushed
// into every peer's inbox and is its own flag, so nothing but the data crosses.
//
// An inbox starts filled with kEmptyWord, which no pushed word equals: a word that differs has
// arrived. Each word is read by one thread, which empties it again. An inbox has three buffers,
// taken in turn: a call ends with what every peer pushed in it, so a peer may be one call ahead but
// never three, and what it pushes meets words that were read and emptied.
//
// What each sum does is fixed: f32, in rank order, rounded once. So every rank gets the same bits,
// with either algorithm, whatever else is summed along.
#pragma once

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxPeers = 8;
// As two bf16 or as f32 a negative zero, or so near it that it is sent as zero.
constexpr uint32_t kEmptyWord = 0x80008000u;

// Device memory of one rank.
struct alignas(16) PeerState {
  uint32_t buffer;   // of the next call
  uint32_t arrived;  // blocks of the running call
  uint32_t dead;     // a call was given up: this one and all later ones do nothing
  uint32_t unused;
};

struct SumNormRows;  // sum_norm_rows.h

// One rank's view of a group. Inboxes are equally long and lie on 16 bytes; the rest is this rank's
// own.
struct PeerGroup {
  int rank = 0;
  int size = 1;
  std::byte* inbox[kMaxPeers] = {};  // by rank, as this GPU addresses them
  size_t buffer_bytes = 0;           // a third of an inbox, a multiple of 16
  // Ranks whose kernels may run on this GPU at the same time, which wait for one another: the
  // blocks of all find room at once.
  int sharing = 1;
  // Host memory: all ranks' SumAddRmsNorm go by it; null: they take nothing.
  const SumNormRows* sum_norm = nullptr;
  PeerState* state = nullptr;
  // Host memory mapped into the GPU. *abort ≠ 0 ends all waits; *stalled is set where one lasted
  // longer than limit_ns. Either makes the group useless.
  const uint32_t* abort = nullptr;
  uint32_t* stalled = nullptr;
  uint64_t limit_ns = 0;
};

constexpr size_t InboxBytes(size_t buffer_bytes) { return 3 * buffer_bytes; }
// Makes the own inbox and state ready. Every rank's is, before any rank's first call.
cudaError_t ClearInbox(const PeerGroup& group, cudaStream_t stream);

// kOneShot: everybody sends all to everybody. kTwoShot: everybody sums a part and sends the sum.
enum class SumAlgorithm { kOneShot, kTwoShot };

// Largest sum [elements] that buffers of buffer_bytes take.
size_t MostSummed(SumAlgorithm algorithm, Type type, int size, size_t buffer_bytes);

// Every rank makes the same calls in the same order, on one stream; they may be recorded. Pointers
// are device memory, 16-byte aligned.

// data[n] becomes the sum over ranks, n ≤ MostSummed.
cudaError_t AllReduceSum(const PeerGroup& group, SumAlgorithm algorithm, void* data, size_t n,
                         Type type, cudaStream_t stream);

constexpr int kAllRanks = -1;
// out = the ranks' parts in rank order, part r of words[r] words of 4 bytes, each rounded up to 16
// bytes at most buffer_bytes / (size - 1). On root alone, or on kAllRanks; the others' out is not
// used. The word kEmptyWord arrives as 0.
cudaError_t GatherWords(const PeerGroup& group, const void* in, const size_t* words, void* out,
                        int root, cudaStream_t stream);

// data[words] becomes root's, any bits; at most buffer_bytes / (2 · (size - 1)) bytes.
cudaError_t BroadcastWords(const PeerGroup& group, void* data, size_t words, int root,
                           cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
