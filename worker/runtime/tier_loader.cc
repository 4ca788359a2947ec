#include "worker/runtime/tier_loader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/layout/row_padding.h"
#include "common/lora/canonical.h"

namespace rootstock {
namespace {

constexpr int kReservedTables = 16;
// Between marks at most: a fraction of a millisecond. Each costs the copies some microseconds.
constexpr uint32_t kGroupBytes = 8 << 20;

}  // namespace

TierLoader::LayerEnds TierLoader::EndsOf(const AdapterLayout& layout, int tp_rank, int num_layers) {
  LayerEnds out;
  out.pages.resize(num_layers);
  const auto& rows = layout.rows(tp_rank);
  uint32_t last_page = 0;
  for (const LayoutEntry& entry : layout.entries(tp_rank)) {
    const size_t row_bytes =
        (entry.elements.size() * DTypeBytes(layout.dtype()) + kRowPadding - 1) / kRowPadding *
        kRowPadding;
    if (entry.ranks.size() == 0 || row_bytes == 0) continue;
    const RowPlace& last = rows[entry.first_row + entry.ranks.size() - 1];
    out.pages[entry.layer] = std::max(out.pages[entry.layer], last.page + 1);
    if (last.page > last_page) out.last_page_bytes = 0;
    last_page = std::max(last_page, last.page);
    const auto end = static_cast<uint32_t>(last.offset + row_bytes);
    if (last.page == last_page) out.last_page_bytes = std::max(out.last_page_bytes, end);
  }
  for (int l = 1; l < num_layers; ++l) out.pages[l] = std::max(out.pages[l], out.pages[l - 1]);
  return out;
}

TierLoader::TierLoader(LoaderParts parts)
    : parts_(std::move(parts)), staging_(*parts_.lane), table_memory_(*parts_.lane) {
  if (const absl::Status reserved = staging_.Reserve(kReservedTables); !reserved.ok()) {
    LogWarning(std::string(reserved.message()));  // each load tries anew
  }
  table_memory_.Refill().IgnoreError();  // a load that finds none says so
  for (int i = 0; i < parts_.build_threads; ++i) threads_.emplace_back([this] { BuildLoop(); });
  threads_.emplace_back([this] { CopyLoop(); });
}

TierLoader::~TierLoader() {
  ForgetAll();
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) thread.join();
}

void TierLoader::NotifyWhenDone(std::function<void()> done) {
  std::lock_guard lock(mutex_);
  on_done_ = std::move(done);
}

void TierLoader::Stage(CommandId id, const PrefetchAdapter& prefetch) {
  auto job = std::make_shared<Job>();
  job->key = {prefetch.digest, prefetch.layout_id};
  job->sharding = prefetch.sharding;
  Start(id, std::move(job));
}

void TierLoader::Load(CommandId id, const LoadAdapter& load) {
  auto job = std::make_shared<Job>();
  job->key = {load.digest, load.layout_id};
  job->sharding = load.sharding;
  job->load = load;
  Start(id, std::move(job));
}

void TierLoader::Start(CommandId id, std::shared_ptr<Job> job) {
  std::unique_lock lock(mutex_);
  jobs_[id] = job;
  Image image = parts_.cache->Find(job->key, job->load.has_value());
  job->was_in_host = image != nullptr;
  if (image == nullptr) {
    Waiters& waiters = builds_[job->key];
    waiters.emplace_back(id, job);
    if (waiters.size() == 1) to_build_.push_back(job->key);
    changed_.notify_all();
    return;
  }
  if (job->load.has_value()) {
    lock.unlock();
    Copy copy{std::move(job), std::move(image)};
    // Here: a step that is ordered next need not wait for the copying thread to wake up.
    Begin(copy);
    lock.lock();
    to_copy_.push_back(std::move(copy));
    changed_.notify_all();
    return;
  }
  job->outcome = absl::OkStatus();
  const auto done = on_done_;
  lock.unlock();
  if (done) done();
}

void TierLoader::BuildLoop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !to_build_.empty(); });
    if (stopping_) return;
    const HostImageKey key = to_build_.front();
    to_build_.pop_front();
    const Waiters& waiters = builds_[key];
    const LoraSharding sharding = waiters[0].second->sharding;
    const bool for_load = std::any_of(waiters.begin(), waiters.end(),
                                      [](const auto& w) { return w.second->load.has_value(); });
    ++busy_;
    lock.unlock();
    absl::StatusOr<Image> image = Build(key, sharding, for_load);
    lock.lock();
    EndBuild(key, image);
    if (!image.ok()) image = Image();  // an error is the waiters' from here on
    --busy_;
    changed_.notify_all();
    const auto done = on_done_;
    lock.unlock();
    image = Image();
    if (done) done();
    lock.lock();
  }
}

void TierLoader::EndBuild(const HostImageKey& key, const absl::StatusOr<Image>& image) {
  const auto it = builds_.find(key);
  const Waiters waiters = std::move(it->second);
  builds_.erase(it);
  if (forgetting_) return;
  for (const auto& [id, job] : waiters) {
    if (!image.ok() || !job->load.has_value()) {
      job->outcome = image.status();
    } else if (*image == nullptr) {  // came while a Stage found no room
      Waiters& again = builds_[key];
      again.emplace_back(id, job);
      if (again.size() == 1) to_build_.push_back(key);
    } else {
      parts_.cache->Find(key, /*for_load=*/true);
      to_copy_.push_back({job, *image});
    }
  }
}

// Where the cache has no room a load goes by memory of its own, and a Stage leaves it at the disk.
absl::StatusOr<std::shared_ptr<HostImage>> TierLoader::MakeRoom(uint32_t num_pages, bool for_load) {
  auto image = parts_.cache->Reserve(num_pages);
  if (image.ok()) return image;
  if (!for_load) return nullptr;
  auto loose = HostImage::Loose(num_pages, parts_.page_bytes);
  if (loose == nullptr) return image;
  return loose;
}

absl::StatusOr<TierLoader::Image> TierLoader::Build(const HostImageKey& key, LoraSharding sharding,
                                                    bool for_load) {
  ASSIGN_OR_RETURN(const HeldBytes held, parts_.read(key.digest));
  ASSIGN_OR_RETURN(const CanonicalAdapter content,
                   CanonicalAdapter::Parse(held.bytes, parts_.spec));
  ASSIGN_OR_RETURN(AdapterLayout layout,
                   AdapterLayout::Create(parts_.spec, content.spec(), parts_.tp, sharding,
                                         parts_.compute_dtype, parts_.page_bytes));
  if (layout.id() != key.layout_id) {
    return InvalidField(Reason::kBaseMismatch, "load.layout_id", absl::StrCat(key.layout_id),
                        absl::StrCat("this group lays the adapter out as ", layout.id()));
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<HostImage> image, MakeRoom(layout.num_pages(), for_load));
  if (image == nullptr) return Image();
  RETURN_IF_ERROR(WriteAdapterRows(content, layout, parts_.tp_rank, image->pages()));
  image->layout = std::make_shared<AdapterLayout>(std::move(layout));
  image->lora = std::make_shared<LoraSpec>(content.spec());
  if (image->in_cache()) parts_.cache->Insert(key, image, /*wanted=*/!for_load);
  return image;
}

void TierLoader::CopyLoop() {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [this] { return stopping_ || !to_copy_.empty(); });
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
  if (!copy.begun) Begin(copy);
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
    changed_.notify_all();
    const auto done = on_done_;
    lock.unlock();
    if (done) done();
  });
}

void TierLoader::Begin(Copy& copy) {
  copy.begun = true;
  copy.status = EnqueueTables(copy);
  if (!copy.status.ok()) return;
  copy.ends = EndsOf(*copy.image->layout, parts_.tp_rank, parts_.spec.num_layers);
  copy.status = EnqueueGroup(copy);
}

absl::Status TierLoader::EnqueueTables(Copy& copy) {
  const AdapterLayout& layout = *copy.image->layout;
  const int num_layers = parts_.spec.num_layers;
  const size_t bytes = DeviceAdapter::TableBytes(layout, num_layers, parts_.tp_rank);
  ASSIGN_OR_RETURN(copy.tables, staging_.Take(bytes));
  ASSIGN_OR_RETURN(auto memory, table_memory_.Take(bytes));
  ASSIGN_OR_RETURN(
      auto adapter,
      DeviceAdapter::Make(layout, *copy.image->lora, num_layers, parts_.tp_rank, slab_->geometry(),
                          copy.job->load->pages, std::move(memory), copy.tables->data()));
  const CopyRun run{adapter->tables(), copy.tables->data(), bytes};
  RETURN_IF_ERROR(parts_.lane->Copy({&run, 1}));
  copy.bytes += bytes;
  std::lock_guard lock(mutex_);
  copy.job->adapter = std::move(adapter);
  copy.job->has_tables = true;
  changed_.notify_all();
  return absl::OkStatus();
}

// A group of layers is as large as all before it, up to kGroupBytes: the first layer can be used at
// once, and the rest is copied in a few pieces.
absl::Status TierLoader::EnqueueGroup(Copy& copy) {
  const std::vector<uint32_t>& ends = copy.ends.pages;
  const uint32_t most = std::max(1u, kGroupBytes / parts_.page_bytes);
  const uint32_t end_page = std::max(ends[copy.layer], copy.page + std::min(copy.page, most));
  int end = copy.layer + 1;
  while (end < parts_.spec.num_layers && ends[end] <= end_page) ++end;
  RETURN_IF_ERROR(CopyPagesTo(ends[end - 1], copy));
  ASSIGN_OR_RETURN(const CopyLane::Mark mark, parts_.lane->MakeMark());
  std::lock_guard lock(mutex_);
  for (; copy.layer < end; ++copy.layer) copy.job->layers.push_back(mark);
  changed_.notify_all();
  return absl::OkStatus();
}

// The adapter's pages up to `end`, those that lie side by side on both sides as one piece.
absl::Status TierLoader::CopyPagesTo(uint32_t end, Copy& copy) {
  std::vector<CopyRun> runs;
  for (uint32_t& page = copy.page; page < end; ++page) {
    const bool last = page + 1 == copy.ends.pages.back();
    const size_t size = last ? copy.ends.last_page_bytes : parts_.page_bytes;
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

std::optional<absl::Status> TierLoader::OutcomeOf(CommandId id) {
  std::lock_guard lock(mutex_);
  const auto job = Find(id);
  return job == nullptr ? std::nullopt : job->outcome;
}

bool TierLoader::WasInHost(CommandId id) {
  std::lock_guard lock(mutex_);
  const auto job = Find(id);
  return job != nullptr && job->was_in_host;
}

absl::StatusOr<std::unique_ptr<DeviceAdapter>> TierLoader::TakeEarly(CommandId id) {
  std::unique_lock lock(mutex_);
  const auto job = Find(id);
  changed_.wait(lock, [&] { return job->has_tables || job->outcome.has_value(); });
  if (!job->has_tables) return *job->outcome;
  return std::move(job->adapter);
}

absl::Status TierLoader::Follow(CommandId id, int layer) {
  std::unique_lock lock(mutex_);
  const auto job = Find(id);
  const auto enqueued = [&] { return job->layers.size() > static_cast<size_t>(layer); };
  changed_.wait(lock, [&] { return enqueued() || job->outcome.has_value(); });
  if (!enqueued()) return *job->outcome;
  if (layer <= job->followed) return absl::OkStatus();
  const bool same = job->followed >= 0 && job->layers[layer] == job->layers[job->followed];
  job->followed = layer;
  if (same) return absl::OkStatus();
  const CopyLane::Mark mark = job->layers[layer];
  lock.unlock();
  return parts_.lane->FollowInStep(mark);
}

std::unique_ptr<DeviceAdapter> TierLoader::Take(CommandId id) {
  std::lock_guard lock(mutex_);
  return std::move(Find(id)->adapter);
}

void TierLoader::Forget(CommandId id) {
  std::shared_ptr<Job> job;  // freed without the mutex
  std::lock_guard lock(mutex_);
  job = Find(id);
  jobs_.erase(id);
}

void TierLoader::ForgetAll() {
  std::map<CommandId, std::shared_ptr<Job>> jobs;
  std::unique_lock lock(mutex_);
  forgetting_ = true;
  for (const HostImageKey& key : std::exchange(to_build_, {})) builds_.erase(key);
  std::erase_if(to_copy_, [](const Copy& copy) { return !copy.begun; });
  changed_.wait(lock, [this] { return busy_ == 0 && to_copy_.empty(); });
  forgetting_ = false;
  jobs.swap(jobs_);
}

LoadStats TierLoader::stats() {
  stall_seconds_ += parts_.lane->TakeStallSeconds();
  std::lock_guard lock(mutex_);
  return {copied_bytes_, stall_seconds_};
}

}  // namespace rootstock
