// A WorkerRuntime over LoadedModel on one device, driven without link and coordinator.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/half.h"
#include "common/layout/adapter_layout.h"
#include "common/lora/canonical.h"
#include "common/lora/peft_loader.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/finish_load.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {

inline const std::filesystem::path kModel = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama";
inline const std::filesystem::path kAdapter =
    ROOTSTOCK_SOURCE_DIR "/tests/cases/adapters/ok-all-linear";
inline constexpr uint32_t kPageTokens = 16;
inline constexpr uint32_t kPagesOfOne = 8;  // of one sequence
inline constexpr int kOutputs = 20;

struct Answer {
  std::vector<int32_t> tokens;
  std::vector<float> logprobs, prompt_logprobs;
};

// Tiny-llama in f32. *One thread.*
class RuntimeRank {
 public:
  // num_pages 0: what fits.
  explicit RuntimeRank(Backend backend, uint32_t num_pages = 400,
                       uint64_t host_cache_bytes = uint64_t{256} << 20)
      : dir_(std::filesystem::temp_directory_path() / absl::StrCat("runtime_gpu.", getpid())),
        spec_(*LoadModelSpec(kModel)),
        tp_(*MakeTpPlan(spec_, 1)) {
    std::filesystem::create_directories(dir_);
    geometry_ = *MakeGeometry(spec_, tp_, DType::kF32, {kPageTokens, std::max(num_pages, 2u), 0});
    geometry_.num_pages = num_pages;
    model_ = *LoadedModel::Create(
        {kModel, false, DType::kF32}, spec_, tp_, std::move(backend), geometry_, *self_,
        {[this](const Digest& d, const BlobSink& sink) { return Content(d, sink); },
         host_cache_bytes});
    runtime_ = std::make_unique<WorkerRuntime>(*model_, *self_);
  }
  ~RuntimeRank() { std::filesystem::remove_all(dir_); }

  absl::StatusOr<AttachReport> TryAttach(uint32_t max_num_seqs, uint32_t max_num_batched_tokens,
                                         uint32_t max_logprobs = 5) {
    return runtime_->Attach({++attach_, 1},
                            {120, max_num_seqs, max_num_batched_tokens, max_logprobs});
  }
  void Attach(uint32_t max_num_seqs, uint32_t max_num_batched_tokens, uint32_t max_logprobs = 5) {
    const auto report = TryAttach(max_num_seqs, max_num_batched_tokens, max_logprobs);
    ASSERT_TRUE(report.ok()) << report.status();
  }
  const PageGeometry& geometry() const { return model_->info().geometry; }
  const StepFacts& last_step() const { return runtime_->last_step(); }
  std::optional<DeviceMemoryUse> memory() { return model_->memory(); }

  // The digest stands for kAdapter with its B times `scale`.
  void Load(const Digest& digest, uint32_t first_page, float scale = 1.0f) {
    EndLoad(BeginLoad(digest, first_page, scale));
  }
  // With kAdapter as it is; what went wrong otherwise is what the group's answer says.
  absl::Status TryLoad(const Digest& digest, uint32_t first_page) {
    return FinishLoad(*runtime_, BeginLoad(digest, first_page));
  }
  // Left running beside the steps.
  CommandId BeginLoad(const Digest& digest, uint32_t first_page, float scale = 1.0f,
                      bool write_content = true) {
    if (write_content) WriteContent(digest, scale);
    const AdapterLayout layout = Layout();
    LoadAdapter load{digest, layout.id(), LoraSharding::kReplicated, {}};
    for (uint32_t p = 0; p < layout.num_pages(); ++p) load.pages.push_back(PageId(first_page + p));
    EXPECT_FALSE(Do(load).has_value());
    return CommandId(commands_);
  }
  // Its copies have run; EndLoad is yet to come.
  void AwaitCopies(CommandId id) {
    const absl::Status copied = AwaitOutcome(*runtime_, id);
    EXPECT_TRUE(copied.ok()) << copied;
  }
  void EndLoad(CommandId id) {
    const absl::Status loaded = FinishLoad(*runtime_, id);
    EXPECT_TRUE(loaded.ok()) << loaded;
  }
  // To the host cache.
  void Stage(const Digest& digest, float scale) {
    WriteContent(digest, scale);
    EXPECT_FALSE(Do(PrefetchAdapter{digest, Layout().id(), LoraSharding::kReplicated, true}));
    EndLoad(CommandId(commands_));
  }
  void ForgetContent(const Digest& digest) { std::filesystem::remove(dir_ / digest.Hex()); }
  LoadStats stats() { return model_->loader().stats(); }
  void Drop(const Digest& digest) {
    EXPECT_TRUE(Do(DropAdapter{digest, Tier::kDevice})->outcome.ok());
  }

  // All sequences in one batch, a plan ahead where the model leaves steps running.
  std::vector<Answer> Run(const std::vector<NewSequence>& sequences,
                          const std::vector<std::vector<int32_t>>& prompts, bool eager = false) {
    std::vector<Answer> answers(sequences.size());
    StepPlan prompt{sequences, {}, eager};
    for (size_t i = 0; i < sequences.size(); ++i) {
      PlanRow row{SequenceSlot(i), static_cast<uint32_t>(prompts[i].size()), 0, prompts[i], {}, {}};
      for (uint32_t p = 0; p < kPagesOfOne; ++p) row.pages.emplace_back(1 + i * kPagesOfOne + p);
      row.output = sequences[i].sampling.prompt_logprobs >= 0 ? RowOutput::kTokenAndPromptLogprobs
                                                              : RowOutput::kToken;
      prompt.rows.push_back(std::move(row));
    }
    Step(std::move(prompt), answers);
    for (int output = 1; output < kOutputs; ++output) {
      StepPlan plan{{}, {}, eager};
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
  void WriteContent(const Digest& digest, float scale) const {
    PeftAdapter adapter = *LoadPeftAdapter(kAdapter, spec_, {});
    for (LoraWeights& weights : adapter.weights) {
      ASSERT_EQ(weights.b_dtype, DType::kBF16);
      const std::span values(reinterpret_cast<uint16_t*>(weights.b.data()), weights.b.size() / 2);
      for (uint16_t& value : values) value = FloatToBF16(scale * BF16ToFloat(value));
    }
    std::ofstream(dir_ / digest.Hex(), std::ios::binary) << EncodeCanonical(adapter, spec_);
  }
  AdapterLayout Layout() const {
    return *AdapterLayout::Create(spec_, LoadPeftAdapter(kAdapter, spec_, {})->spec, tp_,
                                  LoraSharding::kReplicated, DType::kF32, geometry_.page_bytes);
  }
  // Whatever lies under the digest.
  absl::Status Content(const Digest& digest, const BlobSink& sink) const {
    std::ifstream in(dir_ / digest.Hex(), std::ios::binary);
    return GiveAll(std::string(std::istreambuf_iterator<char>(in), {}), sink);
  }
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

  const std::filesystem::path dir_;
  const ModelSpec spec_;
  const TpPlan tp_;
  PageGeometry geometry_;
  std::unique_ptr<ThreadCommunicator> self_ = ThreadCommunicator::Self();
  std::unique_ptr<LoadedModel> model_;
  std::unique_ptr<WorkerRuntime> runtime_;
  uint64_t attach_ = 0;
  uint64_t commands_ = 0;
};

}  // namespace rootstock
