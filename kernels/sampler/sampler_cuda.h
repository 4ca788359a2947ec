// The sampler on the GPU: rows of logits to tokens and logprobs, in sampler.h's order and formulae.
#pragma once

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

constexpr int kMaxTopLogprobs = 128;

// One row's parameters; sampler.h's meaning. Memory that the device reads, 16-byte aligned.
struct alignas(16) SampleRow {
  float temperature = 1.0f;  // 0: greedy
  float top_p = 1.0f;
  float min_p = 0.0f;
  int32_t top_k = 0;
  float presence_penalty = 0.0f;
  float frequency_penalty = 0.0f;
  float repetition_penalty = 1.0f;
  int32_t slot = 0;  // of the sequence: where the token goes
  uint64_t seed = 0;
  uint32_t sample_index = 0;
  uint32_t position = 0;     // of the token to be sampled
  int32_t counts = -1;       // row of SampleStep::counts; -1: no penalty looks at earlier tokens
  int32_t adjust_begin = 0;  // range of SampleStep::adjust_*: bias, or -infinity where banned
  int32_t adjust_end = 0;
  int32_t num_logprobs = -1;  // top entries, ≤ kMaxTopLogprobs; -1: no logprob at all
  int32_t given = -1;         // ≥ 0: nothing is sampled; the logprob of this token is wanted
};

constexpr uint32_t kInPrompt = 0x80000000u;  // bit of a count; the rest: times among the outputs

struct SampleStep {
  const void* logits = nullptr;  // [rows, vocab] of logits_type, row stride vocab
  Type logits_type = Type::kF32;
  int vocab = 0;
  int num_rows = 0;                      // of the launch; rows beyond *live_rows are pads
  const int32_t* live_rows = nullptr;    // [1]; null: num_rows
  const SampleRow* rows = nullptr;       // [num_rows]; read once, perhaps from the host's memory
  const int32_t* adjust_ids = nullptr;   // [adjustments]; ids outside the vocabulary do nothing
  const float* adjust_values = nullptr;  // [adjustments]
  uint32_t* counts = nullptr;            // [.., vocab]: of sequences with penalties; the sampled
                                         // token is counted here
  // Every row of the launch is greedy without penalties, adjustments, logprobs or a given token: of
  // rows only `slot` is read.
  bool greedy_only = false;
  int max_top = 0;          // stride of top_*
  void* scratch = nullptr;  // SampleScratchBytes
  // Out. Nothing is written for pads.
  int32_t* last_tokens = nullptr;  // [slots]: last_tokens[row.slot] = the sampled token (0: none)
  int32_t* tokens = nullptr;  // [num_rows]; the given one; -1: a logit is not finite, or all banned
  int32_t* host_tokens = nullptr;  // [num_rows] or null: the same, in the host's pinned memory
  // Of rows with num_logprobs ≥ 0, log-softmax of the unmodified logits; NaN, rank 0 and ids -1
  // where there is no token, and NaN and -1 for entries beyond the vocabulary.
  float* logprobs = nullptr;      // [num_rows]: of the token
  int32_t* ranks = nullptr;       // [num_rows]: 1 + the tokens of higher logit
  int32_t* top_ids = nullptr;     // [num_rows, max_top], descending, the lower id first of equals
  float* top_logprobs = nullptr;  // [num_rows, max_top]
};

// Of the current device. 0: none is needed.
size_t SampleScratchBytes(int max_rows, int vocab);
void Sample(const SampleStep& step, cudaStream_t stream);

// Another GPU sampled the rows [num_rows]: last_tokens[row.slot] = tokens[row] (0 for -1) of those
// without a given token.
void TakeTokens(const SampleRow* rows, const int32_t* tokens, int num_rows, int32_t* last_tokens,
                cudaStream_t stream);

// A new sequence's row of counts [vocab]: cleared, then its tokens [num_tokens] in memory that the
// device reads, the first num_prompt of them the prompt's. Ids outside the vocabulary do nothing.
void ClearCounts(uint32_t* row, int vocab, cudaStream_t stream);
void AddToCounts(uint32_t* row, int vocab, const int32_t* tokens, int num_tokens, int num_prompt,
                 cudaStream_t stream);

}  // namespace rootstock::kernels::cuda
