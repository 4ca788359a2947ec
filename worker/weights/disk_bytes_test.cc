// What loads bring from the disk: each tp_rank of a host its share, and all of them the file once;
// a tp_rank that meets nobody its slices' pages.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <fstream>
#include <iostream>
#include <numeric>
#include <optional>

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

  // Of a file that no one else has mapped. False where files lie in memory and have no disk to be
  // read from.
  bool Drop() {
    EXPECT_EQ(fdatasync(fd_), 0);
    EXPECT_EQ(posix_fadvise(fd_, 0, 0, POSIX_FADV_DONTNEED), 0);
    return Resident() == 0;
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

void Say(const std::string& counter) { std::cout << "counted by " << counter << std::endl; }

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

TEST(DiskBytesTest, ALoadThatMeetsNobodyBringsItsSlicesPages) {
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
      const bool on_disk = cache.Drop();
      const auto weights = ModelWeights::Load(dir.path(), spec, tp, rank, device, options);
      ASSERT_TRUE(weights.ok()) << weights.status();
      const size_t share = ShareBytes(**weights, spec, sizeof(float));
      const size_t brought = on_disk ? cache.Resident() : (*weights)->bytes_read();
      Say(on_disk ? "mincore" : "bytes_read, as files lie in memory here");
      EXPECT_GE(brought, share);
      EXPECT_LE(brought, share * 1.1);
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

// Bytes that this thread had read from a disk so far; nothing where the system does not count.
std::optional<size_t> BytesFromDisk() {
  std::ifstream io("/proc/thread-self/io");
  for (std::string key; io >> key;) {
    size_t value = 0;
    io >> value;
    if (key == "read_bytes:") return value;
  }
  return std::nullopt;
}

TEST(DiskBytesTest, EachRankOfAHostBringsItsShareAndAllTheFileOnce) {
  const ModelSpec spec = NarrowSpec();
  ModelDir dir("disk-once", std::filesystem::current_path());
  dir.AddModel(spec, DType::kBF16);
  dir.Write();
  const std::filesystem::path file = dir.path() / "model.safetensors";
  const size_t file_bytes = std::filesystem::file_size(file);
  PageCache cache(file);
  for (const int tp_size : {1, 2, 3}) {
    const TpPlan tp = *MakeTpPlan(spec, tp_size);
    const bool counted = cache.Drop() && BytesFromDisk().has_value();
    Say(counted ? "/proc/thread-self/io" : "bytes_read, as no disk counts here");
    std::vector<size_t> brought(tp_size);
    const auto loaded = LoadTogether(tp_size, [&](int rank, const LoadPeers& peers) {
      CpuDevice device(1);
      LoadOptions options;
      options.peers = peers;
      const size_t before = BytesFromDisk().value_or(0);
      auto weights = ModelWeights::Load(dir.path(), spec, tp, rank, device, options);
      if (counted) brought[rank] = *BytesFromDisk() - before;
      if (!counted && weights.ok()) brought[rank] = (*weights)->bytes_read();
      return weights;
    });
    for (int rank = 0; rank < tp_size; ++rank) {
      SCOPED_TRACE(testing::Message() << "tp_rank " << rank << " of " << tp_size);
      ASSERT_TRUE(loaded[rank].ok()) << loaded[rank].status();
      const size_t share = ShareBytes(**loaded[rank], spec, 2);
      EXPECT_GE(brought[rank], share * 0.9);
      EXPECT_LE(brought[rank], share * 1.1);
    }
    const size_t all = std::accumulate(brought.begin(), brought.end(), size_t{0});
    EXPECT_GE(all, file_bytes * 0.98);
    EXPECT_LE(all, file_bytes * 1.02);
  }
}

}  // namespace
}  // namespace rootstock
