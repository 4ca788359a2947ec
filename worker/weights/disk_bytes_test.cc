// What loads bring from the disk: a tp_rank its slices' pages and hardly more where slices are
// wide, the ranks of a host together the file once.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>

#include "worker/device/cpu_device.h"
#include "worker/weights/model_weights.h"
#include "worker/weights/weights_rig.h"

namespace rootstock {
namespace {

// *One thread.*
class PageCache {
 public:
  explicit PageCache(const std::filesystem::path& file) : fd_(open(file.c_str(), O_RDWR)) {
    bytes_ = std::filesystem::file_size(file);
    at_ = mmap(nullptr, bytes_, PROT_READ, MAP_SHARED, fd_, 0);
  }
  ~PageCache() {
    munmap(at_, bytes_);
    close(fd_);
  }
  PageCache(const PageCache&) = delete;
  PageCache& operator=(const PageCache&) = delete;

  // Of a file that no one else has mapped.
  void Drop() {
    ASSERT_EQ(fdatasync(fd_), 0);
    ASSERT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
    ASSERT_EQ(Resident(), 0u) << "this test's folder must lie on a disk: tmpfs keeps its pages";
  }
  // Bytes of pages in memory.
  size_t Resident() const {
    const size_t page = sysconf(_SC_PAGESIZE);
    std::vector<unsigned char> state((bytes_ + page - 1) / page);
    EXPECT_EQ(mincore(at_, bytes_, state.data()), 0);
    size_t pages = 0;
    for (const unsigned char s : state) pages += s & 1;
    return pages * page;
  }

 private:
  const int fd_;
  size_t bytes_ = 0;
  void* at_ = nullptr;
};

// At tp_size 2 a row of o is a slice of 96 KiB, one of down of 192 KiB; at 3, 64 and 128 KiB.
ModelSpec WideSpec() {
  ModelSpec spec;
  spec.architecture = Architecture::kQwen2;
  spec.num_layers = 2;
  spec.hidden_size = 16;
  spec.ffn_size = 96 << 10;
  spec.num_heads = 6;
  spec.num_kv_heads = 6;
  spec.head_dim = 8 << 10;
  spec.vocab_size = 1024;
  spec.tie_word_embeddings = true;
  spec.qkv_bias = true;
  return spec;
}

TEST(DiskBytesTest, WhatALoadBringsFromTheDiskIsItsShare) {
  const ModelSpec spec = WideSpec();
  ModelDir dir("disk", std::filesystem::current_path());
  dir.AddModel(spec, DType::kF32);
  dir.Write();
  PageCache cache(dir.path() / "model.safetensors");
  CpuDevice device(1);
  LoadOptions options;
  options.dtype = DType::kF32;
  for (const int tp_size : {2, 3}) {
    const TpPlan tp = *MakeTpPlan(spec, tp_size);
    for (int rank = 0; rank < tp_size; ++rank) {
      SCOPED_TRACE(testing::Message() << "tp_rank " << rank << " of " << tp_size);
      ASSERT_NO_FATAL_FAILURE(cache.Drop());
      const auto weights = ModelWeights::Load(dir.path(), spec, tp, rank, device, options);
      ASSERT_TRUE(weights.ok()) << weights.status();
      EXPECT_GE(cache.Resident(), (*weights)->bytes_read());
      EXPECT_LE(cache.Resident(), (*weights)->bytes_read() * 1.1);
    }
  }
}

// SmolLM2's shapes in bf16: a row of o has 1152 bytes, one of down 3072: at any tp_size over 1 a
// rank's slices of them touch most pages.
ModelSpec NarrowSpec() {
  ModelSpec spec;
  spec.architecture = Architecture::kQwen2;
  spec.num_layers = 4;
  spec.hidden_size = 576;
  spec.ffn_size = 1536;
  spec.num_heads = 9;
  spec.num_kv_heads = 3;
  spec.head_dim = 64;
  spec.vocab_size = 4096;
  spec.tie_word_embeddings = true;
  spec.qkv_bias = true;
  return spec;
}

// Bytes that this process had read from a disk so far.
size_t BytesFromDisk() {
  std::ifstream io("/proc/self/io");
  for (std::string key; io >> key;) {
    size_t value = 0;
    io >> value;
    if (key == "read_bytes:") return value;
  }
  ADD_FAILURE() << "/proc/self/io tells nothing of read_bytes";
  return 0;
}

TEST(DiskBytesTest, TheRanksOfAHostReadTheFileOnce) {
  const ModelSpec spec = NarrowSpec();
  ModelDir dir("disk-once", std::filesystem::current_path());
  dir.AddModel(spec, DType::kBF16);
  dir.Write();
  const std::filesystem::path file = dir.path() / "model.safetensors";
  const size_t file_bytes = std::filesystem::file_size(file);
  PageCache cache(file);
  CpuDevice device(1);
  for (const int tp_size : {1, 2, 3}) {
    SCOPED_TRACE(testing::Message() << "tp_size " << tp_size);
    const TpPlan tp = *MakeTpPlan(spec, tp_size);
    ASSERT_NO_FATAL_FAILURE(cache.Drop());
    const size_t before = BytesFromDisk();
    for (int rank = 0; rank < tp_size; ++rank) {
      const auto weights = ModelWeights::Load(dir.path(), spec, tp, rank, device, {});
      ASSERT_TRUE(weights.ok()) << weights.status();
    }
    EXPECT_GE(BytesFromDisk() - before, file_bytes * 0.98);
    EXPECT_LE(BytesFromDisk() - before, file_bytes * 1.02);
  }
}

}  // namespace
}  // namespace rootstock
