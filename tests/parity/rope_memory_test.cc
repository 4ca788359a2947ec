// A worker's rope tables are as long as the sequences it may get, not as the model's context.
#include <gtest/gtest.h>
#include <malloc.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/parallel/thread_communicator.h"
#include "worker/runtime/loaded_model.h"
#include "worker/runtime/worker_runtime.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

const fs::path kModel = ROOTSTOCK_SOURCE_DIR "/tests/cases/models/tiny-llama";
constexpr int kContext = 1 << 20;

size_t ResidentBytes() {
  malloc_trim(0);
  size_t total = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> total >> resident;
  return resident * sysconf(_SC_PAGESIZE);
}

class RopeMemoryTest : public testing::Test {
 protected:
  RopeMemoryTest() : dir_(fs::temp_directory_path() / absl::StrCat("rope_memory.", getpid())) {
    nlohmann::json config = nlohmann::json::parse(std::ifstream(kModel / "config.json"));
    config["max_position_embeddings"] = kContext;
    fs::create_directories(dir_);
    std::ofstream(dir_ / "config.json") << config;
  }
  ~RopeMemoryTest() override { fs::remove_all(dir_); }
  const fs::path dir_;
};

TEST_F(RopeMemoryTest, FollowsMaxModelLenAtEachAttach) {
  const auto spec = LoadModelSpec(dir_);
  ASSERT_TRUE(spec.ok()) << spec.status();
  const TpPlan tp = *MakeTpPlan(*spec, 1);
  GeometryRequest request;
  request.num_pages = 8;
  const PageGeometry geometry = *MakeGeometry(*spec, tp, DType::kF32, request);
  const auto self = ThreadCommunicator::Self();
  const auto model = LoadedModel::Create({dir_, true, DType::kF32}, *spec, tp,
                                         MakeCpuBackend(/*threads=*/1), geometry, *self, {});
  ASSERT_TRUE(model.ok()) << model.status();
  WorkerRuntime runtime(**model, *self);
  const size_t tables = size_t{kContext} * spec->head_dim * sizeof(float);  // cos and sin
  const size_t before = ResidentBytes();
  ASSERT_TRUE(runtime.Attach({1, 1}, {.max_model_len = 64}).ok());
  EXPECT_LT(ResidentBytes(), before + tables / 4);
  ASSERT_TRUE(runtime.Attach({1, 2}, {.max_model_len = 0}).ok());
  EXPECT_GT(ResidentBytes(), before + tables);
  ASSERT_TRUE(runtime.Attach({1, 3}, {.max_model_len = 128}).ok());
  EXPECT_LT(ResidentBytes(), before + tables / 4);
}

}  // namespace
}  // namespace rootstock
