#include "tests/parity/test_group.h"

#include <algorithm>
#include <thread>

#include "common/base/status.h"

namespace rootstock {

absl::StatusOr<std::unique_ptr<TestGroup>> TestGroup::Create(const std::filesystem::path& model_dir,
                                                             const GroupOptions& options) {
  std::unique_ptr<TestGroup> group(new TestGroup);
  group->options_ = options;
  group->random_.seed(options.seed);
  ASSIGN_OR_RETURN(group->spec_, LoadModelSpec(model_dir));
  ASSIGN_OR_RETURN(group->tp_, MakeTpPlan(group->spec_, options.tp_size));
  GeometryRequest request;
  request.num_pages = options.num_pages;
  request.page_tokens = options.page_tokens;
  ASSIGN_OR_RETURN(group->geometry_,
                   MakeGeometry(group->spec_, group->tp_, options.compute_type, request));
  group->threads_ = std::make_shared<ThreadGroup>(options.tp_size);
  group->ranks_.resize(options.tp_size);
  RETURN_IF_ERROR(group->CreateRanks(model_dir));
  for (uint32_t page = 1; page < options.num_pages; ++page) {
    RETURN_IF_ERROR(group->FreePage(page));
  }
  return group;
}

// Together, for they agree on how it went.
absl::Status TestGroup::CreateRanks(const std::filesystem::path& model_dir) {
  if (options_.tp_size == 1) return CreateRank(0, model_dir);
  std::vector<absl::Status> made(options_.tp_size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options_.tp_size; ++rank) {
    threads.emplace_back([this, rank, &made, &model_dir] {
      made[rank] = CreateRank(rank, model_dir);
      if (!made[rank].ok()) threads_->Abort(made[rank]);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : made) RETURN_IF_ERROR(status);
  return absl::OkStatus();
}

absl::Status TestGroup::CreateRank(int tp_rank, const std::filesystem::path& model_dir) {
  Rank& rank = ranks_[tp_rank];
  if (options_.cuda) {
    ASSIGN_OR_RETURN(rank.backend, MakeCudaBackend(0, options_.compute_type));
  } else {
    rank.backend = MakeCpuBackend(options_.threads);
  }
  if (options_.change_backend) options_.change_backend(rank.backend);
  Device& device = *rank.backend.device;
  rank.communicator = std::make_unique<ThreadCommunicator>(threads_, tp_rank);
  LoadOptions load;
  load.dtype = options_.dtype;
  ASSIGN_OR_RETURN(rank.weights,
                   options_.dummy_weights
                       ? ModelWeights::Dummy(spec_, tp_, tp_rank, device, /*seed=*/3, load)
                       : ModelWeights::Load(model_dir, spec_, tp_, tp_rank, device, load));
  ASSIGN_OR_RETURN(rank.slab, Slab::Create(device, geometry_));
  rank.ops =
      rank.backend.make_ops({rank.slab->data(), geometry_.page_bytes, geometry_.page_tokens});
  const ModelParts parts{rank.weights.get(), &device, rank.ops.get(), rank.slab.get(),
                         rank.communicator.get()};
  const int positions = std::min<int>(spec_.max_position,
                                      static_cast<int>(options_.num_pages * options_.page_tokens));
  ASSIGN_OR_RETURN(rank.model, Model::Create(spec_, tp_, tp_rank, parts,
                                             {options_.max_tokens, /*max_rows=*/64,
                                              /*max_outputs=*/options_.max_tokens, positions}));
  return absl::OkStatus();
}

uint32_t TestGroup::TakePage() {
  const size_t pick = random_() % free_.size();
  std::swap(free_[pick], free_.back());
  const uint32_t page = free_.back();
  free_.pop_back();
  return page;
}

// Whatever is read of a free page makes itself known.
absl::Status TestGroup::FreePage(uint32_t page) {
  const std::vector<std::byte> nan(geometry_.page_bytes, std::byte{0xff});
  for (Rank& rank : ranks_) {
    ASSIGN_OR_RETURN(std::byte * staged,
                     rank.backend.device->Stage(rank.slab->page(PageId(page)).data(), nan.size()));
    std::copy(nan.begin(), nan.end(), staged);
    RETURN_IF_ERROR(rank.backend.device->WriteBack());
  }
  free_.push_back(page);
  return absl::OkStatus();
}

absl::Status TestGroup::Load(const std::string& name, const std::string& canonical_blob,
                             LoraSharding sharding) {
  const std::span<const uint8_t> bytes(reinterpret_cast<const uint8_t*>(canonical_blob.data()),
                                       canonical_blob.size());
  ASSIGN_OR_RETURN(const CanonicalAdapter adapter, CanonicalAdapter::Parse(bytes, spec_));
  ASSIGN_OR_RETURN(const AdapterLayout layout,
                   AdapterLayout::Create(spec_, adapter.spec(), tp_, sharding,
                                         options_.compute_type, geometry_.page_bytes));
  std::vector<PageId> pages;
  for (uint32_t i = 0; i < layout.num_pages(); ++i) pages.emplace_back(TakePage());
  for (int r = 0; r < options_.tp_size; ++r) {
    Device& device = *ranks_[r].backend.device;
    RETURN_IF_ERROR(ranks_[r].slab->WriteAdapter(adapter, layout, r, pages, device));
    ASSIGN_OR_RETURN(ranks_[r].adapters[name],
                     DeviceAdapter::Create(layout, adapter.spec(), spec_.num_layers, r, geometry_,
                                           pages, device));
  }
  adapters_[name] = pages;
  return absl::OkStatus();
}

absl::Status TestGroup::Evict(const std::string& name) {
  for (const PageId page : adapters_.at(name)) RETURN_IF_ERROR(FreePage(page.value));
  adapters_.erase(name);
  for (Rank& rank : ranks_) rank.adapters.erase(name);
  return absl::OkStatus();
}

ForwardBatch TestGroup::MakeBatch(std::vector<Running>& running, int step, int chunk,
                                  std::vector<Running*>& outputs) {
  ForwardBatch batch;
  for (Running& sequence : running) {
    const int length = static_cast<int>(sequence.tokens.size());
    const int begin = static_cast<int>(batch.token_ids.size());
    const int count = std::min({chunk, length - sequence.done, options_.max_tokens - begin});
    if (sequence.request->arrival > step || count == 0) continue;
    while (sequence.pages.size() * geometry_.page_tokens <
           static_cast<size_t>(sequence.done) + static_cast<size_t>(count)) {
      sequence.pages.push_back(TakePage());
    }
    for (int i = 0; i < count; ++i) {
      batch.token_ids.push_back(sequence.tokens[sequence.done + i]);
      batch.positions.push_back(sequence.done + i);
    }
    batch.rows.push_back({begin, count, sequence.done, sequence.pages});
    sequence.done += count;
    if (sequence.done == length) {
      batch.logit_tokens.push_back(begin + count - 1);
      outputs.push_back(&sequence);
    }
  }
  return batch;
}

void TestGroup::AddSegments(const Running& sequence, int begin, int end, int tp_rank,
                            ForwardBatch& batch) {
  for (const std::string& name : sequence.request->adapters) {
    batch.segments.push_back({begin, end, ranks_[tp_rank].adapters.at(name).get(), 1.0f});
  }
}

absl::StatusOr<std::vector<float>> TestGroup::Forward(const std::vector<ForwardBatch>& batches) {
  std::vector<absl::StatusOr<const float*>> results(ranks_.size(),
                                                    absl::UnknownError("did not run"));
  std::vector<std::thread> others;
  for (size_t r = 1; r < ranks_.size(); ++r) {
    others.emplace_back([&, r] { results[r] = ranks_[r].model->Forward(batches[r]); });
  }
  results[0] = ranks_[0].model->Forward(batches[0]);
  for (std::thread& other : others) other.join();
  for (const auto& result : results) RETURN_IF_ERROR(result.status());
  std::vector<float> logits(batches[0].logit_tokens.size() * spec_.vocab_size);
  RETURN_IF_ERROR(
      ranks_[0].backend.device->Read(*results[0], std::as_writable_bytes(std::span(logits))));
  return logits;
}

void TestGroup::Advance(Running& sequence, std::span<const float> logits) {
  TestRequest& request = *sequence.request;
  request.logits.emplace_back(logits.begin(), logits.end());
  const int32_t token =
      request.forced.empty()
          ? static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin())
          : request.forced[request.tokens.size()];
  request.tokens.push_back(token);
  sequence.tokens.push_back(token);
}

absl::Status TestGroup::Run(std::vector<TestRequest>& requests, int chunk) {
  std::vector<Running> running;
  for (TestRequest& request : requests) {
    request.tokens.clear();
    request.logits.clear();
    running.push_back({&request, request.prompt, {}, 0});
  }
  for (int step = 0; !running.empty(); ++step) {
    std::vector<Running*> outputs;
    const ForwardBatch batch = MakeBatch(running, step, chunk, outputs);
    std::vector<ForwardBatch> batches(ranks_.size(), batch);
    for (size_t r = 0; r < ranks_.size(); ++r) {
      for (const ForwardRow& row : batch.rows) {
        const auto owner = std::find_if(running.begin(), running.end(), [&](const Running& s) {
          return s.pages.data() == row.page_table.data();
        });
        AddSegments(*owner, row.begin, row.begin + row.num_tokens, static_cast<int>(r), batches[r]);
      }
    }
    ASSIGN_OR_RETURN(const std::vector<float> logits, Forward(batches));
    const size_t vocab = spec_.vocab_size;
    for (size_t i = 0; i < outputs.size(); ++i) {
      Advance(*outputs[i], std::span(logits).subspan(i * vocab, vocab));
    }
    const auto done = [](const Running& s) {
      return static_cast<int>(s.request->tokens.size()) >= s.request->max_tokens;
    };
    for (const Running& s : running) {
      if (!done(s)) continue;
      for (const uint32_t page : s.pages) RETURN_IF_ERROR(FreePage(page));
    }
    std::erase_if(running, done);
  }
  return absl::OkStatus();
}

}  // namespace rootstock
