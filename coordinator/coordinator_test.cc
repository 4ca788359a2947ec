// A whole coordinator without groups.
#include "coordinator/coordinator.h"

#include <filesystem>
#include <fstream>

#include "common/base/status.h"
#include "coordinator/adapter_loader.h"
#include "coordinator/adapters/registry.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const std::string kCases = ROOTSTOCK_SOURCE_DIR "/tests/cases/";

fs::path FreshDirectory(const std::string& name) {
  const fs::path directory = fs::path(testing::TempDir()) / name;
  fs::remove_all(directory);
  fs::create_directories(directory);
  return directory;
}

std::unique_ptr<Registry> OpenRegistry(const fs::path& data) {
  const auto model = LoadModelSpec(kCases + "models/tiny-llama");
  EXPECT_TRUE(model.ok()) << model.status();
  auto registry = Registry::Open({.data_dir = data,
                                  .base_name = "tiny-llama",
                                  .loader = MakeAdapterLoader(*model, "tiny-llama", {}),
                                  .unix_ms = [] { return int64_t{1}; }});
  EXPECT_TRUE(registry.ok()) << registry.status();
  return *std::move(registry);
}

TEST(Coordinator, G5ABadPreloadIsReportedAndTheOthersAreServed) {
  const fs::path dir = FreshDirectory("coordinator_preload");
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics_port = 0;
  options.data = dir / "data";
  options.model = kCases + "models/tiny-llama";
  options.port_file = dir / "ports";
  options.adapters = {"nowhere=/no/such/directory", "broken=" + kCases + "adapters/no-nan",
                      "good=" + kCases + "adapters/ok-plain-qv"};
  {
    const auto coordinator = Coordinator::Start(options);
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    EXPECT_TRUE(fs::exists(options.port_file));  // it listens
  }
  const auto registry = OpenRegistry(dir / "data");
  EXPECT_EQ(registry->size(), 1u);
  EXPECT_TRUE(registry->Resolve("good", "default", "r").ok());
}

TEST(Coordinator, AddressesWithoutAPortAreRefusedByName) {
  for (const char* listen : {"nonsense", "0.0.0.0:", ":50051", "host:99999", "host:x"}) {
    CoordinatorOptions options;
    options.data = "data";
    options.listen = listen;
    EXPECT_EQ(CheckOptions(options).message(),
              std::string("listen=") + listen + ": must be HOST:PORT");
  }
}

std::string RefusedStart(const CoordinatorOptions& options) {
  const auto coordinator = Coordinator::Start(options);
  return coordinator.ok() ? "started" : std::string(coordinator.status().message());
}

TEST(Coordinator, AnAdapterRootThatIsNoDirectoryIsRefusedAtStart) {
  const fs::path dir = FreshDirectory("coordinator_root");
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics_port = 0;
  options.data = dir / "data";
  options.model = kCases + "models/tiny-llama";
  options.adapter_root = dir / "adpaters";
  const std::string shown = "adapter-root=" + options.adapter_root;
  EXPECT_EQ(RefusedStart(options), shown + ": No such file or directory");
  std::ofstream(options.adapter_root) << "a file";
  EXPECT_EQ(RefusedStart(options), shown + ": not a directory");
  fs::remove(options.adapter_root);
  fs::create_directory(options.adapter_root);
  EXPECT_EQ(RefusedStart(options), "started");
}

TEST(Coordinator, ABaseUnderTheNameOfAnAdapterIsRefusedAtStart) {
  const fs::path dir = FreshDirectory("coordinator_base_name");
  ASSERT_TRUE(OpenRegistry(dir / "data")
                  ->RegisterDirectory("pirate", kCases + "adapters/ok-plain-qv", "sea")
                  .ok());
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics_port = 0;
  options.data = dir / "data";
  options.model = kCases + "models/tiny-llama";
  options.served_model_name = "pirate";
  EXPECT_EQ(RefusedStart(options),
            "served-model-name=pirate: an adapter or alias of tenant 'sea' has this name; the base "
            "needs another one");
  options.served_model_name = "base";
  EXPECT_EQ(RefusedStart(options), "started");
  options.data.clear();
  EXPECT_EQ(CheckOptions(options).message(), "data: must name a directory");
}

TEST(Coordinator, AfterADrainAnotherOneHasDataAndPort) {
  const fs::path dir = FreshDirectory("coordinator_drain");
  CoordinatorOptions options;
  options.listen = "127.0.0.1:0";
  options.metrics_port = 0;
  options.data = dir / "data";
  options.model = kCases + "models/tiny-llama";
  options.port_file = dir / "ports";
  const auto first = Coordinator::Start(options);
  ASSERT_TRUE(first.ok()) << first.status();
  std::string word;
  std::ifstream(options.port_file) >> word >> options.listen;
  options.listen = "127.0.0.1:" + options.listen;
  (*first)->Drain(absl::Now());
  EXPECT_EQ(RefusedStart(options), "started");
}

TEST(Coordinator, APreloadWithoutNameOrPathIsRefusedAtStart) {
  for (const char* adapter : {"pirate", "=dir/pirate", "pirate="}) {
    CoordinatorOptions options;
    options.adapters = {adapter};
    options.data = "data";
    EXPECT_EQ(CheckOptions(options).message(),
              std::string("adapter=") + adapter + ": must be NAME=PATH");
  }
}

TEST(Coordinator, LogprobsOfAStepThatFitNoMessageAreRefusedAtStart) {
  CoordinatorOptions options;
  options.data = "unused";
  options.model = kCases + "models/tiny-llama";
  options.max_num_seqs = 600;
  options.max_logprobs = 100000;  // more than the vocabulary's 320
  const auto coordinator = Coordinator::Start(options);
  ASSERT_FALSE(coordinator.ok());
  EXPECT_EQ(
      coordinator.status().message(),
      "max-logprobs=100000: 600 sequences (--max-num-seqs) with 320 top entries a token "
      "(--max-logprobs) make a result of 2311200 bytes, more than the 2097152 of one message");
}

TEST(Coordinator, F8TheDirectoryMayVanishOnceItIsRegisteredAndACutOneIsRefused) {
  const fs::path dir = FreshDirectory("coordinator_vanish");
  fs::copy(kCases + "adapters/ok-plain-qv", dir / "adapter");
  const auto registry = OpenRegistry(dir / "data");
  const auto entry = registry->RegisterDirectory("a", dir / "adapter", "default");
  ASSERT_TRUE(entry.ok()) << entry.status();
  const fs::path weights = dir / "adapter" / "adapter_model.safetensors";
  fs::resize_file(weights, fs::file_size(weights) - 16);
  const auto cut = registry->RegisterDirectory("b", dir / "adapter", "default");
  ASSERT_FALSE(cut.ok());
  EXPECT_EQ(GetErrorDetail(cut.status())->reason, Reason::kTruncated) << cut.status();
  fs::remove_all(dir / "adapter");
  EXPECT_FALSE(registry->RegisterDirectory("b", dir / "adapter", "default").ok());
  EXPECT_EQ(registry->size(), 1u);  // no half name stays
  const auto adapter = registry->Resolve("a", "default", "r");
  ASSERT_TRUE(adapter.ok()) << adapter.status();
  auto blob = registry->ReadContent(entry->digest);
  ASSERT_TRUE(blob.ok()) << blob.status();
  const std::string bytes(std::istreambuf_iterator<char>(*blob), {});
  EXPECT_EQ(bytes.size(), adapter->content->blob_bytes);
  EXPECT_EQ(Sha256Of(bytes), entry->digest);
}

TEST(Coordinator, G6AnAdapterThatChangesNothingIsServedAndAnEmptyOneRefused) {
  const fs::path dir = FreshDirectory("coordinator_empty");
  const auto registry = OpenRegistry(dir / "data");
  const auto zero = registry->RegisterDirectory("zero", kCases + "adapters/ok-zero-b", "default");
  EXPECT_TRUE(zero.ok()) << zero.status();
  fs::create_directories(dir / "adapter");
  fs::copy(kCases + "adapters/ok-plain-qv/adapter_config.json", dir / "adapter");
  std::ofstream(dir / "adapter" / "adapter_model.safetensors", std::ios::binary)
      << std::string("\x02\0\0\0\0\0\0\0{}", 10);
  const auto empty = registry->RegisterDirectory("empty", dir / "adapter", "default");
  ASSERT_FALSE(empty.ok());
  EXPECT_EQ(GetErrorDetail(empty.status())->reason, Reason::kNothingAttached) << empty.status();
  EXPECT_EQ(registry->size(), 1u);
}

}  // namespace
}  // namespace rootstock
