#include "coordinator/engine/testing/world.h"

#include <unistd.h>

#include <atomic>
#include <optional>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/engine/counted_sink.h"
#include "coordinator/engine/testing/toy_model.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

std::atomic<int> g_worlds = 0;

fs::path Parent(bool in_memory) {
  constexpr char kMemory[] = "/dev/shm";
  return in_memory && access(kMemory, W_OK) == 0 ? kMemory : testing::TempDir();
}

// The directory's name is the content.
absl::StatusOr<LoadedAdapter> LoadName(const fs::path& directory) {
  LoadedAdapter out;
  out.canonical = directory.filename().string();
  out.digest = Sha256Of(out.canonical);
  out.spec.modules = {{0, Module::kQ, 8, 1.0f}};
  out.receipt_json = "{}";
  return out;
}

}  // namespace

void Heard::Push(TokenBatch batch) {
  if (done || finish.contains(batch.index)) pushed_after_end = true;
  auto& mine = tokens[batch.index];
  for (const int32_t token : batch.tokens) {
    mine.push_back(token);
    if (client && mine.size() <= stop_string_after) {
      client->OnDelta({.index = batch.index, .token_ids = {token}});
    }
  }
  logprobs += batch.logprobs.size();
  prompt_logprobs.insert(prompt_logprobs.end(), batch.prompt_logprobs.begin(),
                         batch.prompt_logprobs.end());
  if (batch.finish_reason == FinishReason::kNone) return;
  finish[batch.index] = batch.finish_reason;
  stop_match[batch.index] = batch.stop_match;
}

void Heard::Close(const absl::Status& s) {
  ++closes;
  status = s;
  if (const auto last = std::exchange(client, nullptr)) last->OnDone(s, {});
  done = true;
}

World::World(WorldOptions options)
    : executor(options.seed),
      directory(Parent(options.in_memory) / absl::StrCat("world_", getpid(), "_", g_worlds++)),
      engine_metrics(std::make_shared<EngineMetrics>(metrics)),
      options_(std::move(options)) {
  fs::remove_all(directory);
  fs::create_directories(directory);
  OpenRegistry();
  MakeEngine();
}

World::~World() {
  engine.reset();
  registry.reset();
  fs::remove_all(directory);
}

void World::OpenRegistry() {
  auto opened = Registry::Open({.data_dir = directory / "data",
                                .base_name = "base",
                                .loader = options_.loader ? options_.loader : LoadName,
                                .unix_ms = [] { return int64_t{1}; }});
  EXPECT_TRUE(opened.ok()) << opened.status();
  registry = *std::move(opened);
}

void World::MakeEngine() {
  EngineOptions o;
  o.model.name = "base";
  o.model.vocab_size = toy::kVocab;
  o.model.max_model_len = options_.limits.max_model_len;
  o.model.max_logprobs = std::max(o.model.max_logprobs, options_.limits.max_logprobs);
  o.model.eos_token_ids = {toy::kEos};
  o.limits = options_.limits;
  o.pool = options_.pool;
  o.max_queued = options_.max_queued;
  o.step_timeout = options_.step_timeout;
  o.build = "build-1";
  o.clock = options_.threads ? MonotonicClock() : executor.clock();
  o.wall_clock = o.clock;
  o.queues = options_.threads ? ThreadTaskQueues(o.clock) : executor.queues();
  o.metrics = engine_metrics;
  o.registry = registry.get();
  o.text.check_stop = [](const std::vector<std::string>&) { return absl::OkStatus(); };
  o.text.encode = [](const std::string& text, bool, bool) -> absl::StatusOr<std::vector<int32_t>> {
    std::vector<int32_t> out;
    for (const char c : text) out.push_back(c % toy::kVocab);
    return out;
  };
  o.text.open = [](TextPort::Open open, std::shared_ptr<GenerateSink> sink,
                   std::function<void(int)> on_stop) -> std::shared_ptr<TokenSink> {
    auto heard =
        std::dynamic_pointer_cast<Heard>(std::dynamic_pointer_cast<CountedSink>(sink)->client());
    heard->client = std::move(sink);
    heard->opened = std::move(open);
    heard->on_stop = std::move(on_stop);
    return heard;
  };
  o.shape.check_split = [](const GroupInfo& info) {
    return info.tp_size <= 3 ? absl::OkStatus()
                             : InvalidField(Reason::kCannotSplit, "tp_size",
                                            absl::StrCat(info.tp_size), "3 KV heads");
  };
  o.shape.ways = [ways = options_.ways](const AdapterContent& c, const GroupInfo&,
                                        const AttachReport&) -> absl::StatusOr<AdapterWays> {
    if (ways) return ways(c);
    return AdapterWays{{toy::FootprintOf(c.digest)}};
  };
  o.random = [this] { return next_random_++; };
  engine = std::make_unique<CoordinatorEngine>(std::move(o));
}

void World::RestartEngine() {
  engine.reset();
  registry.reset();
  OpenRegistry();
  MakeEngine();
}

Digest World::Add(const std::string& name, const std::string& text) {
  const std::string content = text.empty() ? "content-of-" + name : text;
  const auto entry = registry->RegisterDirectory(name, content, "default");
  EXPECT_TRUE(entry.ok()) << entry.status();
  return Sha256Of(content);
}

GenerateRequest World::Ask(const std::string& model, std::vector<int32_t> prompt, int max_tokens) {
  GenerateRequest r;
  r.model = model;
  r.token_ids = std::move(prompt);
  r.max_tokens = max_tokens;
  r.ignore_eos = true;
  r.sampling.seed = 7;
  return r;
}

void World::Unregister(const std::string& name) {
  const auto gone = registry->Unregister(name, "default");
  ASSERT_TRUE(gone.ok()) << gone.status();
  for (const RetiredVersion& version : *gone) {
    if (version.last_name) engine->Unload(version.digest, nullptr);
  }
}

absl::StatusOr<World::Sent> World::TryGenerate(GenerateRequest request) {
  auto heard = std::make_shared<Heard>();
  const auto number = engine->Generate(request, heard);
  if (!number.ok()) return number.status();
  return Sent{*number, std::move(heard), std::move(request)};
}

World::Sent World::Generate(GenerateRequest request) {
  auto sent = TryGenerate(std::move(request));
  EXPECT_TRUE(sent.ok()) << sent.status();
  return *sent;
}

FakeGroup& World::AddGroup(const std::string& name, uint32_t pages, uint32_t page_tokens) {
  auto& group = groups[name];
  group = std::make_unique<FakeGroup>(name, pages, page_tokens);
  if (options_.prepare) options_.prepare(*group);
  EXPECT_TRUE(group->Attach(*engine).ok());
  Run();
  return *group;
}

void World::Settle() {
  for (bool any = true; any;) {
    Run();
    any = false;
    for (auto& [name, group] : groups) {
      if (group->attached()) any |= group->CompleteAll();
    }
  }
}

std::vector<int32_t> World::ExpectedTokens(const Sent& sent, uint32_t sample) {
  const uint64_t key =
      sent.heard->accepted.adapter ? toy::AdapterKey(*sent.heard->accepted.adapter) : 0;
  return toy::Expected(*sent.request.token_ids, key, sent.heard->accepted.seed, sample,
                       static_cast<uint32_t>(*sent.request.max_tokens), sent.request.ignore_eos);
}

void World::ExpectRight(const Sent& sent) {
  EXPECT_TRUE(sent.heard->done);
  EXPECT_TRUE(sent.heard->status.ok()) << sent.heard->status;
  EXPECT_EQ(sent.heard->closes, 1);
  EXPECT_FALSE(sent.heard->pushed_after_end);
  for (int i = 0; i < sent.request.n; ++i) {
    EXPECT_EQ(sent.heard->tokens[i], ExpectedTokens(sent, static_cast<uint32_t>(i)))
        << "sample " << i;
  }
}

GroupStatus World::StatusOf(const std::string& group) {
  const EngineStatus status = engine->Status();
  for (const GroupStatus& s : status.groups) {
    if (s.info.name == group) return s;
  }
  ADD_FAILURE() << "no group " << group;
  return {};
}

double World::Metric(const std::string& series) const {
  std::istringstream lines(metrics.Text());
  std::string line;
  std::optional<double> found;
  while (std::getline(lines, line)) {
    const size_t space = line.rfind(' ');
    if (line[0] == '#' || !absl::EndsWith(line.substr(0, space), series)) continue;
    if (found) ADD_FAILURE() << "several series end with " << series;
    found = std::stod(line.substr(space));
  }
  if (!found) ADD_FAILURE() << "no series ends with " << series;
  return found.value_or(-1);
}

void World::ExpectClean() {
  for (const auto& [name, group] : groups) {
    EXPECT_TRUE(group->violations.empty()) << name << ": " << group->violations.front();
    EXPECT_LE(group->most_wasted_rows, 1u) << name;
    if (!group->attached()) continue;
    const GroupStatus s = StatusOf(name);
    uint32_t adapter_pages = 0;
    for (const ResidentAdapter& a : s.adapters) adapter_pages += a.pages.size();
    EXPECT_EQ(s.pages_kv, 0u);
    EXPECT_EQ(s.pages_adapter, adapter_pages);
    EXPECT_EQ(s.pages_free + s.pages_adapter, group->geometry.num_pages - 1);
  }
}

Reason ReasonOf(const absl::Status& status) {
  const auto detail = GetErrorDetail(status);
  return detail ? detail->reason : Reason::kInternal;
}

}  // namespace rootstock
