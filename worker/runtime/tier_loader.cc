#include "worker/runtime/tier_loader.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/layout/adapter_image.h"
#include "common/layout/row_padding.h"
#include "common/lora/canonical_stream.h"

namespace rootstock {
namespace {

constexpr int kReservedTables = 16;

}  // namespace

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
    build_.notify_all();
    copy_.notify_all();
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
    const bool first = waiters.size() == 1;
    if (first) to_build_.push_back(job->key);
    lock.unlock();
    if (first) build_.notify_one();
    return;
  }
  if (job->load.has_value()) {
    const bool alone = busy_ == 0 && to_copy_.empty();
    lock.unlock();
    Copy copy{std::move(job), std::move(image)};
    // Here: a step that is ordered next need not wait for the copying thread to wake up.
    Begin(alone ? parts_.ordered_bytes : 0, copy);
    lock.lock();
    to_copy_.push_back(std::move(copy));
    lock.unlock();
    copy_.notify_one();
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
    build_.wait(lock, [this] { return stopping_ || !to_build_.empty(); });
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
    progress_.notify_all();
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
      build_.notify_one();
    } else {
      parts_.cache->Find(key, /*for_load=*/true);
      to_copy_.push_back({job, *image});
      copy_.notify_one();
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

LayerEnds TierLoader::EndsOf(const AdapterLayout& layout, int tp_rank, int num_layers) {
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

absl::StatusOr<TierLoader::Image> TierLoader::Build(const HostImageKey& key, LoraSharding sharding,
                                                    bool for_load) {
  std::shared_ptr<HostImage> image;  // null while there is none, and without room
  const auto begin = [&](const LoraSpec& lora) -> absl::Status {
    ASSIGN_OR_RETURN(AdapterLayout layout,
                     AdapterLayout::Create(parts_.spec, lora, parts_.tp, sharding,
                                           parts_.compute_dtype, parts_.page_bytes));
    if (layout.id() != key.layout_id) {
      return InvalidField(Reason::kBaseMismatch, "load.layout_id", absl::StrCat(key.layout_id),
                          absl::StrCat("this group lays the adapter out as ", layout.id()));
    }
    ASSIGN_OR_RETURN(image, MakeRoom(layout.num_pages(), for_load));
    if (image == nullptr) return absl::OkStatus();
    image->ends = EndsOf(layout, parts_.tp_rank, parts_.spec.num_layers);
    image->layout = std::make_shared<AdapterLayout>(std::move(layout));
    image->lora = std::make_shared<LoraSpec>(lora);
    return absl::OkStatus();
  };
  const auto take = [&](size_t tensor, const TensorView& view) {
    if (image == nullptr) return absl::OkStatus();
    return WriteTensorRows(*image->lora, tensor, view, *image->layout, parts_.tp_rank,
                           image->pages());
  };
  CanonicalStream stream(parts_.spec, begin, take);
  RETURN_IF_ERROR(parts_.read(key.digest, stream.sink()));
  RETURN_IF_ERROR(stream.CheckComplete());
  if (image == nullptr) return Image();
  if (image->in_cache()) parts_.cache->Insert(key, image, /*wanted=*/!for_load);
  return image;
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
  progress_.wait(lock, [&] { return job->has_tables || job->outcome.has_value(); });
  if (!job->has_tables) return *job->outcome;
  return std::move(job->adapter);
}

absl::Status TierLoader::Follow(CommandId id, int layer) {
  std::unique_lock lock(mutex_);
  const auto job = Find(id);
  const auto enqueued = [&] { return job->layers.size() > static_cast<size_t>(layer); };
  progress_.wait(lock, [&] { return enqueued() || job->outcome.has_value(); });
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
  progress_.wait(lock, [this] { return busy_ == 0 && to_copy_.empty(); });
  forgetting_ = false;
  jobs.swap(jobs_);
}

LoadStats TierLoader::stats() {
  stall_seconds_ += parts_.lane->TakeStallSeconds();
  std::lock_guard lock(mutex_);
  return {copied_bytes_, stall_seconds_};
}

}  // namespace rootstock
