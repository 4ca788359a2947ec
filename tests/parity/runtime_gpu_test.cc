// The worker's runtime on a GPU against the same runtime on the host's processor, both in f32: what
// the model-level tests don't reach. Steps left running, the last token on the device, the sampler,
// penalties, logprobs, attach after attach, limits between the graphs' sizes.
#include "tests/parity/runtime_rank.h"

namespace rootstock {
namespace {

// Every kind of sampling, half of the rows with an adapter.
void MakeBatch(size_t rows, const Digest& adapter, std::vector<NewSequence>& sequences,
               std::vector<std::vector<int32_t>>& prompts) {
  for (size_t i = 0; i < rows; ++i) {
    std::vector<int32_t>& prompt = prompts.emplace_back();
    for (size_t t = 0; t < 3 + i % 5; ++t)
      prompt.push_back(static_cast<int32_t>(5 + 7 * i + 3 * t) % 60);
    NewSequence& s = sequences.emplace_back();
    s.slot = SequenceSlot(i);
    s.num_prompt_tokens = s.num_tokens = static_cast<uint32_t>(prompt.size());
    s.seed = 100 + i;
    SamplingParams& p = s.sampling;
    p.temperature = i % 3 == 0 ? 0.0f : 0.9f;
    if (i % 4 == 1) p.top_k = 5;
    if (i % 4 == 2) p.top_p = 0.8f;
    if (i % 5 == 1) p.repetition_penalty = 1.3f;
    if (i % 5 == 2) p.frequency_penalty = 0.6f;
    if (i % 6 == 3) p.logit_bias = {{7, 2.0f}, {9, -1.0f}};
    if (i % 4 == 3) p.logprobs = 3;
    if (i % 7 == 4) p.prompt_logprobs = 2;
    if (i % 2 == 1) s.spans = {{0, 0, {{adapter, 1.0f}}}};
  }
}

void ExpectSame(const std::vector<Answer>& gpu, const std::vector<Answer>& cpu) {
  for (size_t i = 0; i < cpu.size(); ++i) {
    SCOPED_TRACE(i);
    EXPECT_EQ(gpu[i].tokens, cpu[i].tokens);
    ASSERT_EQ(gpu[i].tokens.size(), static_cast<size_t>(kOutputs));
    ASSERT_EQ(gpu[i].logprobs.size(), cpu[i].logprobs.size());
    for (size_t l = 0; l < cpu[i].logprobs.size(); ++l) {
      EXPECT_NEAR(gpu[i].logprobs[l], cpu[i].logprobs[l], 1e-3);
    }
    ASSERT_EQ(gpu[i].prompt_logprobs.size(), cpu[i].prompt_logprobs.size());
    for (size_t l = 0; l < cpu[i].prompt_logprobs.size(); ++l) {
      EXPECT_NEAR(gpu[i].prompt_logprobs[l], cpu[i].prompt_logprobs[l], 1e-3);
    }
  }
}

struct Limits {
  uint32_t seqs, tokens;
};

class RuntimeGpuTest : public testing::TestWithParam<Limits> {};

TEST_P(RuntimeGpuTest, AnswersAsTheHostDoesAttachAfterAttach) {
  const Digest adapter = Sha256Of("adapter");
  std::vector<NewSequence> sequences;
  std::vector<std::vector<int32_t>> prompts;
  // Prompts of 3 to 7 tokens fit one step.
  MakeBatch(std::min(GetParam().seqs, GetParam().tokens / 7), adapter, sequences, prompts);
  RuntimeRank cpu(MakeCpuBackend(1));
  cpu.Attach(GetParam().seqs, GetParam().tokens);
  cpu.Load(adapter, 380);
  const std::vector<Answer> expected = cpu.Run(sequences, prompts);
  auto backend = MakeCudaBackend(0, DType::kF32);
  ASSERT_TRUE(backend.ok()) << backend.status();
  RuntimeRank gpu(*std::move(backend));
  gpu.Attach(GetParam().seqs, GetParam().tokens);
  gpu.Load(adapter, 370);
  ExpectSame(gpu.Run(sequences, prompts), expected);
  EXPECT_FALSE(cpu.last_step().span.has_value());
  ASSERT_TRUE(gpu.last_step().span.has_value());
  EXPECT_GT(gpu.last_step().span->busy, 0);
  EXPECT_GE(gpu.last_step().span->gap, 0);
  // The same limits: nothing is recorded anew. Others: everything is. The adapter stays.
  gpu.Attach(GetParam().seqs, GetParam().tokens);
  ExpectSame(gpu.Run(sequences, prompts), expected);
  gpu.Attach(GetParam().seqs + 3, GetParam().tokens + 40);
  ExpectSame(gpu.Run(sequences, prompts), expected);
}

INSTANTIATE_TEST_SUITE_P(Sizes, RuntimeGpuTest,
                         testing::Values(Limits{40, 512}, Limits{20, 160}, Limits{64, 30},
                                         Limits{3, 8}),
                         [](const auto& info) {
                           return absl::StrCat("Seqs", info.param.seqs, "Tokens",
                                               info.param.tokens);
                         });

}  // namespace
}  // namespace rootstock
