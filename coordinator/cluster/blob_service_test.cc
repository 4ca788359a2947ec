// Content that groups fetch from the coordinator.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "common/wire/error_trailer.h"
#include "common/wire/plan_wire.h"
#include "coordinator/cluster/cluster_rig.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {
namespace {

using ::testing::ElementsAre;

using BlobServiceTest = GroupServiceTest;

TEST_F(BlobServiceTest, BlobsComeInChunks) {
  std::string content(2'500'000, 'x');
  for (size_t i = 0; i < content.size(); i += 977) content[i] = static_cast<char>('a' + i % 26);
  std::ofstream(blob_, std::ios::binary) << content;
  const Digest digest = Sha256Of(content);
  const auto stub = v1::Blobs::NewStub(channel_);
  const auto fetch = [&](const std::string& digest, std::vector<size_t>* sizes) {
    grpc::ClientContext context;
    v1::FetchRequest request;
    request.set_digest(digest);
    auto reader = stub->Fetch(&context, request);
    std::string got;
    v1::FetchChunk chunk;
    while (reader->Read(&chunk)) {
      EXPECT_EQ(chunk.total_bytes(), got.empty() ? content.size() : 0u);
      got += chunk.data();
      sizes->push_back(chunk.data().size());
    }
    return std::make_pair(reader->Finish(), got);
  };
  std::vector<size_t> sizes;
  auto [status, got] = fetch(DigestToBytes(digest), &sizes);
  EXPECT_TRUE(status.ok());
  EXPECT_EQ(got, content);
  EXPECT_THAT(sizes, ElementsAre(1u << 20, 1u << 20, 2'500'000u - (2u << 20)));
  EXPECT_EQ(fetch(std::string(32, '\0'), &sizes).first.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(fetch("short", &sizes).first.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  // What the disk has spoilt is told, and not handed out as if it were the content.
  content[2'000'000] ^= 1;
  std::ofstream(blob_, std::ios::binary) << content;
  status = fetch(DigestToBytes(digest), &sizes).first;
  EXPECT_EQ(status.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_THAT(doubts_.WaitFor(1), ElementsAre(digest.Short()));
  std::filesystem::remove(blob_);
  std::filesystem::create_directory(blob_);  // opens, and can't be read
  EXPECT_EQ(fetch(DigestToBytes(digest), &sizes).first.error_code(), grpc::StatusCode::DATA_LOSS);
  EXPECT_EQ(doubts_.WaitFor(2).size(), 2u);
  std::filesystem::remove(blob_);
  for (bool* blocked : {&busy_, &is_away_}) {
    *blocked = true;
    EXPECT_EQ(fetch(std::string(32, '\1'), &sizes).first.error_code(),
              grpc::StatusCode::RESOURCE_EXHAUSTED);
    *blocked = false;
  }
}

// A node's disk is not the only one that may be full.
TEST_F(BlobServiceTest, ARefusalHasItsReason) {
  const auto stub = v1::Blobs::NewStub(channel_);
  const auto fetch = [&] {
    grpc::ClientContext context;
    v1::FetchRequest request;
    request.set_digest(std::string(32, '\1'));
    auto reader = stub->Fetch(&context, request);
    v1::FetchChunk chunk;
    EXPECT_FALSE(reader->Read(&chunk));
    return FromGrpcStatus(reader->Finish(), context);
  };
  refused_ = MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoSpace, "data", "x", "full");
  const absl::Status full = fetch();
  EXPECT_EQ(full, refused_);
  EXPECT_EQ(GetErrorDetail(full)->field, "data");
  is_away_ = true;
  EXPECT_EQ(GetErrorDetail(fetch())->reason, Reason::kQueueFull);
}

}  // namespace
}  // namespace rootstock
