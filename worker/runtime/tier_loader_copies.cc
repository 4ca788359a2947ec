// TierLoader: from the host to pages.
#include <algorithm>
#include <utility>

#include "common/base/status.h"
#include "worker/runtime/tier_loader.h"

namespace rootstock {
namespace {

// Between marks at most: a fraction of a millisecond. Each costs the copies some microseconds.
constexpr uint32_t kGroupBytes = 16 << 20;

}  // namespace

void TierLoader::CopyLoop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    copy_.wait(lock, [this] { return stopping_ || !to_copy_.empty(); });
    if (stopping_) return;
    Copy copy = std::move(to_copy_.front());
    to_copy_.pop_front();
    ++busy_;
    lock.unlock();
    StartCopy(std::move(copy));
    lock.lock();
  }
}

// The image and the tables stay until the copies have run, or failed.
void TierLoader::StartCopy(Copy copy) {
  if (!copy.begun) Begin(0, copy);
  while (copy.status.ok() && copy.layer < parts_.spec.num_layers) copy.status = EnqueueGroup(copy);
  table_memory_.Refill().IgnoreError();
  parts_.lane->NotifyWhenDone([this, copy = std::move(copy)](absl::Status status) mutable {
    copy.image = nullptr;
    copy.tables = nullptr;
    std::unique_lock lock(mutex_);
    copy.job->outcome = copy.status.ok() ? std::move(status) : std::move(copy.status);
    copy.job = nullptr;  // its device memory is freed elsewhere
    copied_bytes_ += copy.bytes;
    --busy_;
    progress_.notify_all();
    const auto done = on_done_;
    lock.unlock();
    if (done) done();
  });
}

void TierLoader::Begin(uint32_t bytes, Copy& copy) {
  copy.begun = true;
  copy.status =
      DeviceAdapter::CheckPages(*copy.image->layout, slab_->geometry(), copy.job->load->pages);
  if (!copy.status.ok()) return;
  do {
    copy.status = EnqueueGroup(copy);
  } while (copy.status.ok() && copy.layer < parts_.spec.num_layers &&
           uint64_t{copy.page} * parts_.page_bytes < bytes);
}

absl::Status TierLoader::EnqueueTables(Copy& copy) {
  const AdapterLayout& layout = *copy.image->layout;
  const int num_layers = parts_.spec.num_layers;
  const size_t bytes = DeviceAdapter::TableBytes(layout, num_layers, parts_.tp_rank);
  ASSIGN_OR_RETURN(copy.tables, staging_.Take(bytes));
  ASSIGN_OR_RETURN(auto memory, table_memory_.Take(bytes));
  auto adapter =
      DeviceAdapter::Make(layout, *copy.image->lora, num_layers, parts_.tp_rank, slab_->geometry(),
                          copy.job->load->pages, std::move(memory), copy.tables->data());
  const CopyRun run{adapter->tables(), copy.tables->data(), bytes};
  RETURN_IF_ERROR(parts_.lane->Copy({&run, 1}));
  copy.bytes += bytes;
  {
    std::lock_guard lock(mutex_);
    copy.job->adapter = std::move(adapter);
    copy.job->has_tables = true;
  }
  progress_.notify_all();
  return absl::OkStatus();
}

// A group of layers is as large as all before it, up to kGroupBytes: the first layer can be used at
// once, and the rest is copied in a few pieces. Tables are made while the first group is copied.
absl::Status TierLoader::EnqueueGroup(Copy& copy) {
  const std::vector<uint32_t>& ends = copy.image->ends.pages;
  const uint32_t most = std::max(1u, kGroupBytes / parts_.page_bytes);
  const uint32_t end_page = std::max(ends[copy.layer], copy.page + std::min(copy.page, most));
  int end = copy.layer + 1;
  while (end < parts_.spec.num_layers && ends[end] <= end_page) ++end;
  RETURN_IF_ERROR(CopyPagesTo(ends[end - 1], copy));
  if (copy.layer == 0) RETURN_IF_ERROR(EnqueueTables(copy));
  ASSIGN_OR_RETURN(const CopyLane::Mark mark, parts_.lane->MakeMark());
  {
    std::lock_guard lock(mutex_);
    for (; copy.layer < end; ++copy.layer) copy.job->layers.push_back(mark);
  }
  progress_.notify_all();
  return absl::OkStatus();
}

// The adapter's pages up to `end`, those that lie side by side on both sides as one piece.
absl::Status TierLoader::CopyPagesTo(uint32_t end, Copy& copy) {
  const LayerEnds& ends = copy.image->ends;
  std::vector<CopyRun> runs;
  for (uint32_t& page = copy.page; page < end; ++page) {
    const bool last = page + 1 == ends.pages.back();
    const size_t size = last ? ends.last_page_bytes : parts_.page_bytes;
    std::byte* const to = slab_->page(copy.job->load->pages[page]).data();
    const std::byte* const from = copy.image->pages()[page];
    copy.bytes += size;
    if (!runs.empty() && runs.back().to + runs.back().bytes == to &&
        runs.back().from + runs.back().bytes == from) {
      runs.back().bytes += size;
    } else {
      runs.push_back({to, from, size});
    }
  }
  return runs.empty() ? absl::OkStatus() : parts_.lane->Copy(runs);
}

std::shared_ptr<TierLoader::Job> TierLoader::Find(CommandId id) {
  const auto it = jobs_.find(id);
  return it == jobs_.end() ? nullptr : it->second;
}

}  // namespace rootstock
