// Ten thousand adapters with aliases: what they cost in memory, and a look-up in time.
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <iostream>
#include <memory>

#include "absl/strings/str_cat.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/adapters/testing/scratch.h"
#include "gtest/gtest.h"

namespace rootstock {
namespace {

constexpr int kAdapters = 10'000;
constexpr int kLayers = 30;
constexpr size_t kMaxBytes = size_t{1} << 30;
constexpr double kMaxLookupMs = 1;  // of 99 in 100

size_t ResidentBytes() {
  size_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return resident * static_cast<size_t>(sysconf(_SC_PAGESIZE));
}

absl::StatusOr<LoadedAdapter> EveryModule(int number) {
  LoadedAdapter out;
  out.canonical = absl::StrCat("adapter ", number);
  out.digest = Sha256Of(out.canonical);
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Module module : kAllModules) out.spec.modules.push_back({layer, module, 16, 0.5f});
  }
  out.receipt_json = "{}";
  return out;
}

TEST(RegistryScale, TenThousandAdaptersWithAliases) {
  using Clock = std::chrono::steady_clock;
  const ScratchDirectory scratch("scale");
  const RegistryOptions options = {
      .data_dir = scratch.path(), .base_name = "base", .unix_ms = [] { return int64_t{1}; }};
  {
    auto filled = Registry::Open(options);
    ASSERT_TRUE(filled.ok()) << filled.status();
    for (int i = 0; i < kAdapters; ++i) {
      const std::string name = absl::StrCat("adapter-", i);
      ASSERT_TRUE((*filled)->RegisterFrom(name, "t", false, [&] { return EveryModule(i); }).ok());
      ASSERT_TRUE((*filled)->SetAlias(absl::StrCat("alias-", i), "t", {{name, 1}}).ok());
    }
  }
  const size_t before = ResidentBytes();
  const auto opening = Clock::now();
  auto opened = Registry::Open(options);
  ASSERT_TRUE(opened.ok()) << opened.status();
  const std::chrono::duration<double> open_seconds = Clock::now() - opening;
  const size_t bytes = ResidentBytes();

  std::vector<double> microseconds;
  for (int i = 0; i < kAdapters; ++i) {
    const std::string alias = absl::StrCat("alias-", (i * 7919) % kAdapters);
    const auto start = Clock::now();
    const auto bound = (*opened)->Resolve(alias, "t", "request");
    const std::chrono::duration<double, std::micro> took = Clock::now() - start;
    ASSERT_TRUE(bound.ok());
    microseconds.push_back(took.count());
  }
  std::sort(microseconds.begin(), microseconds.end());
  const double p99 = microseconds[kAdapters * 99 / 100];
  std::cout << kAdapters << " adapters: " << (bytes - before) / 1048576 << " MiB more, process "
            << bytes / 1048576 << " MiB; opened in " << open_seconds.count() << " s; look-up "
            << microseconds[kAdapters / 2] << " us, p99 " << p99 << " us\n";
  EXPECT_LT(bytes, kMaxBytes);
  EXPECT_LT(p99, kMaxLookupMs * 1000);
}

}  // namespace
}  // namespace rootstock
