#include "coordinator/adapter_parts.h"

#include <filesystem>

#include "coordinator/engine/testing/manual_executor.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

// What a coordinator that is killed leaves behind.
int64_t LastUseIn(const fs::path& data) {
  const fs::path copy = data.string() + "_copy";
  fs::remove_all(copy);
  fs::copy(data, copy, fs::copy_options::recursive);
  const auto registry = Registry::Open({.data_dir = copy});
  EXPECT_TRUE(registry.ok()) << registry.status();
  return (*registry)->Get("a", "default")->last_used_unix_ms;
}

TEST(AdapterParts, LastUsesAreDurableAMinuteLater) {
  const fs::path data = fs::path(testing::TempDir()) / "adapter_parts_uses";
  fs::remove_all(data);
  ManualExecutor executor(1);
  const auto queue = executor.queues()("registry");
  int64_t now = 5000;
  const auto registry = *Registry::Open(
      {.data_dir = data,
       .loader =
           [](const fs::path&) {
             return LoadedAdapter{Sha256Of("x"), {{{0, Module::kQ, 4, 1.0f}}}, "{}", "x"};
           },
       .unix_ms = [&] { return now; }});
  ASSERT_TRUE(registry->RegisterDirectory("a", "anywhere", "default").ok());
  SaveUsesEveryMinute(queue.get(), executor.clock(), registry.get());
  for (int minutes = 0; minutes < 3; ++minutes) {
    ASSERT_TRUE(registry->Resolve("a", "default", "r").ok());
    executor.Advance(absl::Seconds(59));
    executor.RunAll();
    EXPECT_LT(LastUseIn(data), now);
    executor.Advance(absl::Seconds(1));
    executor.RunAll();
    EXPECT_EQ(LastUseIn(data), now);
    now += 60000;
  }
}

}  // namespace
}  // namespace rootstock
