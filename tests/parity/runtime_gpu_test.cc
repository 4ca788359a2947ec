// The worker's runtime on a GPU against the same runtime on the host's processor, both in f32: what
// the model-level tests don't reach. Steps left running, the last token on the device, the sampler,
// penalties, logprobs, attach after attach, limits between the graphs' sizes.
#include <gtest/gtest.h>
#include <unistd.h>

#include <deque>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/canonical.h"
#include "common/lora/peft_loader.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama";
const fs::path kAdapter = ROOTSTOCK_SOURCE_DIR "/tests/cases/adapters/ok-all-linear";
constexpr uint32_t kPageTokens = 16;
constexpr uint32_t kPagesOfOne = 8;  // of one sequence
constexpr int kOutputs = 20;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, prompt_logprobs;
};

class Rank {
 public:
  explicit Rank(Backend backend)
      : dir_(fs::temp_directory_path() / absl::StrCat("runtime_gpu.", getpid())),
        spec_(*LoadModelSpec(kModel)),
        tp_(*MakeTpPlan(spec_, 1)) {
    fs::create_directories(dir_);
    geometry_ = *MakeGeometry(spec_, tp_, DType::kF32, {kPageTokens, 400, 0});
    model_ =
        *LoadedModel::Create({kModel, false, DType::kF32}, spec_, tp_, std::move(backend),
                             geometry_, *self_, [this](const Digest& d) { return dir_ / d.Hex(); });
    runtime_ = std::make_unique<WorkerRuntime>(*model_, *self_);
  }
  ~Rank() { fs::remove_all(dir_); }

  void Attach(uint32_t max_num_seqs, uint32_t max_num_batched_tokens) {
    const auto report =
        runtime_->Attach({++attach_, 1}, {120, max_num_seqs, max_num_batched_tokens, 5});
    ASSERT_TRUE(report.ok()) << report.status();
  }

  void Load(const Digest& digest, uint32_t first_page) {
    const std::string blob = EncodeCanonical(*LoadPeftAdapter(kAdapter, spec_, {}), spec_);
    std::ofstream(dir_ / digest.Hex(), std::ios::binary) << blob;
    const auto content = CanonicalAdapter::Open(dir_ / digest.Hex(), spec_);
    const auto layout = AdapterLayout::Create(
        spec_, content->spec(), tp_, LoraSharding::kReplicated, DType::kF32, geometry_.page_bytes);
    LoadAdapter load{digest, layout->id(), LoraSharding::kReplicated, {}};
    for (uint32_t p = 0; p < layout->num_pages(); ++p) load.pages.push_back(PageId(first_page + p));
    EXPECT_TRUE(Do(load)->outcome.ok());
  }

  // All sequences in one batch, a plan ahead where the model leaves steps running.
  std::vector<Answer> Run(const std::vector<NewSequence>& sequences,
                          const std::vector<std::vector<int32_t>>& prompts) {
    std::vector<Answer> answers(sequences.size());
    StepPlan prompt{sequences, {}};
    for (size_t i = 0; i < sequences.size(); ++i) {
      PlanRow row{SequenceSlot(i), static_cast<uint32_t>(prompts[i].size()), 0, prompts[i], {}, {}};
      for (uint32_t p = 0; p < kPagesOfOne; ++p) row.pages.emplace_back(1 + i * kPagesOfOne + p);
      row.output = sequences[i].sampling.prompt_logprobs >= 0 ? RowOutput::kTokenAndPromptLogprobs
                                                              : RowOutput::kToken;
      prompt.rows.push_back(std::move(row));
    }
    Step(std::move(prompt), answers);
    for (int output = 1; output < kOutputs; ++output) {
      StepPlan plan;
      for (size_t i = 0; i < sequences.size(); ++i) {
        plan.rows.push_back({SequenceSlot(i),
                             1,
                             static_cast<uint32_t>(prompts[i].size() + output - 1),
                             {},
                             {},
                             RowOutput::kToken});
      }
      Step(std::move(plan), answers);
    }
    while (runtime_->num_running() > 0) Take(*runtime_->Finish(), answers);
    ReleaseSlots release;
    for (size_t i = 0; i < sequences.size(); ++i) release.slots.emplace_back(i);
    EXPECT_TRUE(Do(release)->outcome.ok());
    return answers;
  }

 private:
  std::optional<Completion> Do(decltype(Command::kind) kind) {
    auto completion = runtime_->Start({CommandId(++commands_), {attach_, 1}, std::move(kind)});
    EXPECT_TRUE(completion.ok()) << completion.status();
    return *std::move(completion);
  }
  void Step(StepPlan plan, std::vector<Answer>& answers) {
    if (const auto completion = Do(std::move(plan)); completion.has_value()) {
      Take(*completion, answers);
    }
    if (runtime_->num_running() > 1) Take(*runtime_->Finish(), answers);
  }
  static void Take(const Completion& completion, std::vector<Answer>& answers) {
    ASSERT_TRUE(completion.outcome.ok()) << completion.outcome;
    for (const RowResult& row : completion.step.rows) {
      Answer& answer = answers[row.slot.value];
      EXPECT_FALSE(row.nonfinite);
      answer.tokens.insert(answer.tokens.end(), row.tokens.begin(), row.tokens.end());
      const auto keep = [](const std::vector<TokenLogprob>& from, std::vector<float>& to) {
        for (const TokenLogprob& l : from) {
          to.push_back(l.logprob);
          for (const auto& [token, logprob] : l.top) to.push_back(logprob);
        }
      };
      keep(row.logprobs, answer.logprobs);
      keep(row.prompt_logprobs, answer.prompt_logprobs);
    }
  }

  const fs::path dir_;
  const ModelSpec spec_;
  const TpPlan tp_;
  PageGeometry geometry_;
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<WorkerRuntime> runtime_;
  uint64_t attach_ = 0;
  uint64_t commands_ = 0;
};

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
  Rank cpu(MakeCpuBackend(1));
  cpu.Attach(GetParam().seqs, GetParam().tokens);
  cpu.Load(adapter, 380);
  const std::vector<Answer> expected = cpu.Run(sequences, prompts);
  auto backend = MakeCudaBackend(0, DType::kF32);
  ASSERT_TRUE(backend.ok()) << backend.status();
  Rank gpu(*std::move(backend));
  gpu.Attach(GetParam().seqs, GetParam().tokens);
  gpu.Load(adapter, 370);
  ExpectSame(gpu.Run(sequences, prompts), expected);
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
