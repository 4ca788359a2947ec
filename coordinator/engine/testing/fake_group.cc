#include "coordinator/engine/testing/fake_group.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/engine/testing/toy_model.h"
#include "coordinator/scheduler/scheduler.h"

namespace rootstock {
class FakeGroup::Link : public GroupLink {
 public:
  explicit Link(FakeGroup* group) : group_(group) {}
  void Send(Command command) override {
    const std::lock_guard lock(group_->mutex_);
    if (!cut_) group_->Receive(std::move(command));
  }
  void SendLeave() override {
    const std::lock_guard lock(group_->mutex_);
    if (!cut_) group_->left = true;
  }
  void Close(const absl::Status& why) override {
    const std::lock_guard lock(group_->mutex_);
    if (cut_) return;
    group_->closed = why;
    group_->Die(why);
  }
  void Cut() { cut_ = true; }  // under the group's mutex

 private:
  FakeGroup* const group_;
  bool cut_ = false;
};

FakeGroup::FakeGroup(std::string name, uint32_t num_pages, uint32_t page_tokens)
    : geometry{num_pages, 4096, page_tokens}, memory_(size_t{num_pages} * page_tokens) {
  info.name = std::move(name);
  info.pool = "unified";
  info.build = "build-1";
  info.tp_size = 2;
  info.model_fingerprint = Sha256Of("the base");
  info.ranks = {{"host", "cpu", "build-1", 1, 0}, {"host", "cpu", "build-1", 2, 0}};
}

absl::Status FakeGroup::Attach(GroupDirectory& directory, bool keep_adapters) {
  const std::lock_guard lock(mutex_);
  RETURN_IF_ERROR(Hello(directory));
  return Report(directory, keep_adapters);
}

absl::Status FakeGroup::Hello(GroupDirectory& directory) {
  const std::lock_guard lock(mutex_);
  ASSIGN_OR_RETURN(order_, directory.OnHello(info));
  return absl::OkStatus();
}

absl::Status FakeGroup::Report(GroupDirectory& directory, bool keep_adapters) {
  const std::lock_guard lock(mutex_);
  slots_.clear();
  steps_.clear();
  others_.clear();
  last_step_naming_.clear();
  last_completed_step_ = last_id_ = CommandId(0);
  if (!keep_adapters) {
    residents_.clear();
    host_.clear();
  }
  prefetched_.clear();
  told_on_host_ = {host_.begin(), host_.end()};
  pinned_.clear();
  changes_.clear();
  std::erase_if(residents_, [](const auto& r) { return !r.second.complete || r.second.leaving; });
  std::set<uint32_t> kept;
  AttachReport report{order_.epoch, geometry, DType::kF32, {}};
  report.loads_by_layer = loads_by_layer;
  for (const Digest& d : host_) report.cached.push_back({d, Tier::kHost, kHostBytes});
  for (const Digest& d : disk_) report.cached.push_back({d, Tier::kDisk, kDiskBytes});
  for (const auto& [digest, resident] : residents_) {
    for (const PageId page : resident.pages) kept.insert(page.value);
    report.adapters.push_back({digest, resident.layout_id, resident.pages});
  }
  for (uint32_t page = 0; page < geometry.num_pages; ++page) {
    if (!kept.contains(page)) Poison(page);
  }
  link_ = std::make_shared<Link>(this);
  const auto listener = directory.OnAttached(info, report, link_);
  if (!listener.ok()) {
    link_.reset();
    return listener.status();
  }
  listener_ = *listener;
  return absl::OkStatus();
}

void FakeGroup::Die(const absl::Status& why) {
  const std::lock_guard lock(mutex_);
  if (!link_) return;
  link_->Cut();
  link_.reset();
  steps_.clear();
  others_.clear();
  listener_->OnLost(why);
  listener_.reset();
}

void FakeGroup::HoldFetch(const Digest& digest, bool hold) {
  if (hold) {
    held_.insert(digest);
  } else {
    held_.erase(digest);
  }
}

size_t FakeGroup::pending_steps() const {
  const std::lock_guard lock(mutex_);
  return steps_.size();
}

std::vector<FakeGroup::StepTimes> FakeGroup::step_times() const {
  const std::lock_guard lock(mutex_);
  return step_times_;
}

std::set<Digest> FakeGroup::residents() const {
  std::set<Digest> out;
  for (const auto& [digest, r] : residents_) {
    if (r.complete && !r.leaving) out.insert(digest);
  }
  return out;
}

void FakeGroup::Poison(uint32_t page) {
  for (uint32_t i = 0; i < geometry.page_tokens; ++i)
    Memory(page, i) = 0xdeadbeefull + page * 31 + i;
}

void FakeGroup::Receive(Command command) {
  const std::lock_guard lock(mutex_);
  if (command.id <= last_id_) Violation("command ids do not ascend");
  last_id_ = command.id;
  if (command.epoch != order_.epoch) Violation("a command of another epoch");
  if (auto* plan = std::get_if<StepPlan>(&command.kind)) {
    ++plans;
    ticks += plan->rows.empty();
    step_times_.push_back({std::chrono::steady_clock::now(), std::nullopt});
    if (keep_log) log.push_back(*plan);
    CheckStep(command.id, *plan);
    std::vector<std::shared_ptr<Slot>> slots;
    for (const PlanRow& row : plan->rows) slots.push_back(slots_[row.slot.value]);
    steps_.emplace_back(Pending{command.id, std::move(command.kind)}, std::move(slots));
    if (steps_.size() > 2) Violation("more than two steps are not completed");
    return;
  }
  if (auto* release = std::get_if<ReleaseSlots>(&command.kind)) {
    for (const SequenceSlot slot : release->slots) {
      if (slots_.erase(slot.value) == 0) Violation("a slot released without being held");
    }
  } else if (auto* load = std::get_if<LoadAdapter>(&command.kind)) {
    ++loads;
    sharded_loads += load->sharding == LoraSharding::kFullySharded ? 1 : 0;
    CheckLoad(*load);
    for (size_t i = 0; i < load->pages.size(); ++i) {
      Poison(load->pages[i].value);
      Memory(load->pages[i].value, 0) = toy::AdapterCell(load->digest, i);
    }
    residents_[load->digest] = {load->pages, load->layout_id};
  } else if (auto* drop = std::get_if<DropAdapter>(&command.kind)) {
    ++drops;
    const auto it = residents_.find(drop->digest);
    if (it != residents_.end() && drop->tiers.has(Tier::kDevice)) {
      it->second.leaving = true;
      const bool holds = !it->second.failed;
      for (const PageId page : holds ? it->second.pages : std::vector<PageId>{}) {
        if (last_step_naming_[page.value] > last_completed_step_) {
          Violation("dropped under a step that is not completed");
        }
        Poison(page.value);
      }
    }
  } else if (auto* pin = std::get_if<PinAdapter>(&command.kind)) {
    ++pins;
    pin->pinned ? void(pinned_.insert(pin->digest)) : void(pinned_.erase(pin->digest));
  } else {
    ++prefetches;
    const auto& fetch = std::get<PrefetchAdapter>(command.kind);
    last_fetch_bytes = fetch.bytes;
    if (!fetch.to_host) Violation("a Prefetch not to the host");
  }
  others_.push_back({command.id, std::move(command.kind)});
}

void FakeGroup::CheckStep(CommandId id, const StepPlan& plan) {
  uint32_t tokens = 0;
  std::set<Digest> adapters;
  for (const NewSequence& s : plan.new_sequences) {
    if (slots_.contains(s.slot.value)) Violation("a slot given again before its Release");
    if (s.slot.value >= order_.limits.max_num_seqs) Violation("a slot beyond max_num_seqs");
    auto slot = std::make_shared<Slot>();
    slot->sequence = s;
    slot->outputs = s.num_tokens - s.num_prompt_tokens;
    slots_[s.slot.value] = std::move(slot);
  }
  std::set<uint32_t> seen;
  for (const PlanRow& row : plan.rows) {
    if (!slots_.contains(row.slot.value)) {
      Violation("a row of an unknown slot");
      slots_[row.slot.value] = std::make_shared<Slot>();
    }
    if (!seen.insert(row.slot.value).second) Violation("two rows of one slot");
    tokens += row.query_len;
    CheckRow(id, row);
    for (const AdapterSpan& span : slots_[row.slot.value]->sequence.spans) {
      for (const AdapterUse& use : span.adapters) {
        adapters.insert(use.adapter);
        CheckUse(id, plan, use.adapter);
      }
    }
  }
  most_adapters_in_a_step =
      std::max(most_adapters_in_a_step, static_cast<uint32_t>(adapters.size()));
  if (tokens > order_.limits.max_num_batched_tokens) Violation("over max_num_batched_tokens");
  if (plan.rows.size() > order_.limits.max_num_seqs) Violation("over max_num_seqs");
  rows += plan.rows.size();
  eager_plans += plan.eager;
}

void FakeGroup::CheckUse(CommandId id, const StepPlan& plan, const Digest& digest) {
  const auto it = residents_.find(digest);
  if (it == residents_.end() || it->second.leaving) {
    Violation("a row names an adapter that is not on the device");
    return;
  }
  if (!it->second.complete) {
    if (!loads_by_layer) Violation("a row names an adapter that is loading");
    if (!plan.eager) Violation("a step that is not eager names an adapter that is loading");
    if (!prefetched_.contains(digest)) Violation("a step behind a Load without a Prefetch");
  }
  for (const PageId page : it->second.pages) last_step_naming_[page.value] = id;
}

void FakeGroup::CheckRow(CommandId id, const PlanRow& row) {
  Slot& slot = *slots_[row.slot.value];
  for (const PageId page : row.pages) {
    CheckNewPage(page);
    slot.pages.push_back(page.value);
  }
  if (row.tokens.empty() ? (!slot.sampled || row.query_len != 1)
                         : row.tokens.size() != row.query_len) {
    Violation("a row without its tokens");
  }
  // A fresh slot may start behind shared pages, else rows follow each other without gap.
  const bool start = slot.next_position == 0 && row.position % geometry.page_tokens == 0;
  if (row.position != slot.next_position && !start) Violation("a gap in positions");
  slot.next_position = row.position + row.query_len;
  if (slot.pages.size() * geometry.page_tokens < slot.next_position) Violation("a page is missing");
  // No page is written by two.
  for (uint32_t p = row.position / geometry.page_tokens;
       p <= (slot.next_position - 1) / geometry.page_tokens && p < slot.pages.size(); ++p) {
    for (const auto& [other, state] : slots_) {
      if (other != row.slot.value &&
          std::count(state->pages.begin(), state->pages.end(), slot.pages[p]) > 0) {
        Violation("a page written by two");
      }
    }
  }
  for (const uint32_t page : slot.pages) last_step_naming_[page] = id;
  if (row.output == RowOutput::kToken || row.output == RowOutput::kTokenAndPromptLogprobs) {
    slot.sampled = true;
  }
}

void FakeGroup::CheckNewPage(PageId page) {
  if (page.value == 0 || page.value >= geometry.num_pages) Violation("scratch or unknown page");
  for (const auto& [digest, resident] : residents_) {
    if (resident.failed) continue;
    if (std::count(resident.pages.begin(), resident.pages.end(), page) > 0) {
      Violation("KV on a page that an adapter, a Load or a Drop holds");
    }
  }
}

void FakeGroup::CheckLoad(const LoadAdapter& load) {
  if (!prefetched_.contains(load.digest) && !told_on_host_.contains(load.digest)) {
    Violation("a Load before its content was there");
  }
  if (const auto it = residents_.find(load.digest); it != residents_.end() && !it->second.failed) {
    Violation("loaded twice");
  }
  const AdapterFootprint footprint = load.sharding == LoraSharding::kFullySharded
                                         ? toy::ShardedFootprintOf(load.digest)
                                         : toy::FootprintOf(load.digest);
  if (load.pages.size() != footprint.pages) Violation("wrong page count");
  if (load.layout_id != footprint.layout_id) Violation("a layout id of another sharding");
  for (const PageId page : load.pages) {
    CheckNewPage(page);
    if (last_step_naming_[page.value] > last_completed_step_) {
      Violation("a Load on a page named by a step that is not completed");
    }
    for (const auto& [id, slot] : slots_) {
      if (std::count(slot->pages.begin(), slot->pages.end(), page.value) > 0) {
        Violation("a Load on a page of a live sequence");
      }
    }
  }
}

uint64_t FakeGroup::AdapterKeyOnDevice(const NewSequence& sequence) {
  if (sequence.spans.empty()) return 0;
  const Digest& digest = sequence.spans[0].adapters[0].adapter;
  const std::vector<PageId>& pages = residents_[digest].pages;
  uint64_t key = 0;
  for (const PageId page : pages) key = toy::Mix(key, Memory(page.value, 0));
  // What a fully sharded one leaves to the other ranks.
  for (size_t i = pages.size(); i < toy::FootprintOf(digest).pages; ++i) {
    key = toy::Mix(key, toy::AdapterCell(digest, i));
  }
  return key;
}

RowResult FakeGroup::ExecuteRow(const PlanRow& row) {
  Slot& slot = *(*executing_)[executing_row_++];
  if (slot.over) most_wasted_rows = std::max(most_wasted_rows, ++slot.wasted);
  const uint64_t key = AdapterKeyOnDevice(slot.sequence);
  const auto cell = [&](uint32_t position) -> uint64_t& {
    return Memory(slot.pages[position / geometry.page_tokens], position % geometry.page_tokens);
  };
  RowResult out;
  out.slot = row.slot;
  if (slot.pages.size() * geometry.page_tokens < row.position + row.query_len) {
    Violation("a row beyond its pages");  // of a slot that changed hands too early
    out.nonfinite = true;
    return out;
  }
  slot.executed = row.position + row.query_len;
  uint64_t context = 0;
  for (uint32_t p = 0; p < row.position; ++p) context = toy::Mix(context, cell(p));
  const bool prompt_logprobs =
      row.output == RowOutput::kPromptLogprobs || row.output == RowOutput::kTokenAndPromptLogprobs;
  for (uint32_t i = 0; i < row.query_len; ++i) {
    const uint32_t position = row.position + i;
    const int32_t token = row.tokens.empty() ? slot.last_token : row.tokens[i];
    cell(position) = toy::Cell(context, token, key);
    context = toy::Mix(context, cell(position));
    if (prompt_logprobs && position > 0 && position < slot.sequence.num_prompt_tokens) {
      out.prompt_logprobs.push_back({token, -static_cast<float>(position), 1, {}});
    }
  }
  if (row.output == RowOutput::kToken || row.output == RowOutput::kTokenAndPromptLogprobs) {
    slot.last_token = toy::Sample(context, slot.sequence.seed, slot.sequence.sample_index,
                                  row.position + row.query_len);
    out.tokens = {slot.last_token};
    ++slot.outputs;
    if (slot.sequence.sampling.logprobs >= 0) {
      out.logprobs.push_back({slot.last_token, -1.0f, 1, {}});
    }
    slot.over |= toy::EosEnds(slot.sequence.seed) && slot.last_token == toy::kEos;
  }
  return out;
}

absl::Status FakeGroup::Refuse(const StepPlan& plan) {
  for (size_t i = 0; i < plan.rows.size(); ++i) {
    const PlanRow& row = plan.rows[i];
    const Slot& slot = *(*executing_)[i];
    for (const AdapterSpan& span : slot.sequence.spans) {
      for (const AdapterUse& use : span.adapters) {
        const auto resident = residents_.find(use.adapter);
        if (resident == residents_.end() || resident->second.complete) continue;
        if (resident->second.failed) return absl::FailedPreconditionError("is not resident");
        if (const auto fault = LoadFault(use.adapter)) return *fault;
      }
    }
    const bool made = std::any_of(plan.new_sequences.begin(), plan.new_sequences.end(),
                                  [&](const NewSequence& s) { return s.slot == row.slot; });
    if (!made && slot.executed != row.position) {
      return absl::InvalidArgumentError("the slot holds no sequence that has come so far");
    }
  }
  return absl::OkStatus();
}

StepResult FakeGroup::Execute(const StepPlan& plan) {
  StepResult result;
  std::set<Digest> adapters;
  uint64_t bytes = 0;
  executing_row_ = 0;
  for (const PlanRow& row : plan.rows) {
    const Slot& slot = *(*executing_)[executing_row_];
    if (!slot.sequence.spans.empty()) adapters.insert(slot.sequence.spans[0].adapters[0].adapter);
    RowResult out = ExecuteRow(row);
    const SamplingParams& asked = slot.sequence.sampling;
    bytes += out.prompt_logprobs.size() *
                 LogprobBytes(static_cast<uint64_t>(std::max(asked.prompt_logprobs, 0))) +
             out.logprobs.size() * LogprobBytes(static_cast<uint64_t>(std::max(asked.logprobs, 0)));
    if (row.output != RowOutput::kNone) result.rows.push_back(std::move(out));
  }
  most_result_bytes = std::max(most_result_bytes, bytes);
  result.distinct_adapters = static_cast<uint32_t>(adapters.size());
  result.duration_us = 1000;
  return result;
}

void FakeGroup::CompleteStep() {
  const std::lock_guard lock(mutex_);
  auto [pending, slots] = std::move(steps_.front());
  steps_.pop_front();
  executing_ = &slots;
  const auto& plan = std::get<StepPlan>(pending.kind);
  Completion completion{pending.id, Refuse(plan), {}};
  if (completion.outcome.ok()) {
    completion.step = Execute(plan);
  } else {
    ++refused_plans;
  }
  last_completed_step_ = pending.id;
  step_times_[step_times_.size() - steps_.size() - 1].completed = std::chrono::steady_clock::now();
  TellChanges(completion);
  if (tamper) tamper(completion);
  listener_->OnCompletion(std::move(completion));
}

bool FakeGroup::CompleteAll() {
  const std::lock_guard lock(mutex_);
  bool any = false;
  for (size_t n = steps_.size(); n > 0; --n) {
    CompleteStep();
    any = true;
  }
  for (size_t i = 0; i < others_.size();) {
    const auto* fetch = std::get_if<PrefetchAdapter>(&others_[i].kind);
    if (fetch != nullptr && held_.contains(fetch->digest)) {
      ++i;
      continue;
    }
    CompleteOther(i);
    any = true;
  }
  return any;
}

}  // namespace rootstock
