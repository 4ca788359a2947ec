#include "worker/parallel/communicator_checks.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <numeric>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

// Values whose float sum depends on the order.
float ValueOf(int rank, size_t i) {
  return std::ldexp(1.0f + 0.001f * static_cast<float>(i % 97), rank * 5 % 13) *
         (rank % 2 == 0 ? 1.0f : -1.0f);
}

absl::Status CheckSum(Communicator& c, size_t n) {
  std::vector<float> data(n);
  for (size_t i = 0; i < n; ++i) data[i] = ValueOf(c.rank(), i);
  RETURN_IF_ERROR(c.AllReduceSum(data.data(), n, DType::kF32));
  size_t wrong = 0;
  for (size_t i = 0; i < n; ++i) {
    float sum = ValueOf(0, i);
    for (int r = 1; r < c.size(); ++r) sum += ValueOf(r, i);
    wrong += std::memcmp(&sum, &data[i], sizeof sum) != 0;  // bits, not values
  }
  EXPECT_EQ(wrong, 0u) << "of " << n;
  return absl::OkStatus();
}

// 16-bit elements, each rank's already in its place.
absl::Status CheckInPlace(Communicator& c, const std::vector<size_t>& counts,
                          const std::vector<float>& want) {
  std::vector<uint16_t> bits(want.size());
  for (size_t i = 0; i < want.size(); ++i) bits[i] = static_cast<uint16_t>(31 * i + 7);
  const size_t begin = std::accumulate(counts.begin(), counts.begin() + c.rank(), size_t{0});
  std::vector<uint16_t> all(want.size());
  std::copy_n(bits.begin() + begin, counts[c.rank()], all.begin() + begin);
  RETURN_IF_ERROR(c.AllGather(all.data() + begin, counts, all.data(), DType::kBF16));
  EXPECT_EQ(all, bits);
  return absl::OkStatus();
}

absl::Status CheckGathers(Communicator& c, size_t unit) {
  std::vector<size_t> counts(c.size());
  std::vector<float> want;
  for (int r = 0; r < c.size(); ++r) {
    counts[r] = r == 1 ? 0 : unit * (r + 1);  // unequal, one of them empty
    for (size_t i = 0; i < counts[r]; ++i) want.push_back(ValueOf(r, i));
  }
  std::vector<float> in(counts[c.rank()]);
  for (size_t i = 0; i < in.size(); ++i) in[i] = ValueOf(c.rank(), i);
  std::vector<float> all(want.size(), -1.0f);
  RETURN_IF_ERROR(c.AllGather(in.data(), counts, all.data(), DType::kF32));
  EXPECT_EQ(all, want);
  RETURN_IF_ERROR(CheckInPlace(c, counts, want));
  for (int root = 0; root < c.size(); ++root) {
    std::vector<float> out(c.rank() == root ? want.size() : 0, -1.0f);
    RETURN_IF_ERROR(
        c.Gather(in.data(), counts, c.rank() == root ? out.data() : nullptr, DType::kF32, root));
    if (c.rank() == root) {
      EXPECT_EQ(out, want);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBroadcast(Communicator& c, size_t bytes) {
  for (int root = 0; root < c.size(); ++root) {
    std::vector<std::byte> data(bytes, std::byte(c.rank() == root ? 40 + root : 0));
    RETURN_IF_ERROR(c.Broadcast(data.data(), bytes, root));
    EXPECT_EQ(data, std::vector<std::byte>(bytes, std::byte(40 + root)));
  }
  return absl::OkStatus();
}

// One rank's error, with its detail, is what all get.
void CheckAgree(Communicator& c) {
  EXPECT_TRUE(c.Agree(absl::OkStatus()).ok());
  const int last = c.size() - 1;
  absl::Status mine;
  if (c.rank() == last) {
    mine = MakeError(absl::StatusCode::kResourceExhausted, Reason::kNoMemory, "workspace", "cpu",
                     "no 7 bytes");
  }
  const absl::Status all = c.Agree(mine);
  EXPECT_EQ(all.code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(all.message(), absl::StrCat("tp_rank ", last, ": workspace=cpu: no 7 bytes"));
  ASSERT_TRUE(GetErrorDetail(all).has_value());
  EXPECT_EQ(GetErrorDetail(all)->reason, Reason::kNoMemory);
}

}  // namespace

absl::Status CheckCollectives(Communicator& communicator) {
  for (const size_t n : {0, 1, 7, 576, 4097, 70001}) {
    RETURN_IF_ERROR(CheckSum(communicator, n));
  }
  for (const size_t n : {1, 100, 5001}) RETURN_IF_ERROR(CheckGathers(communicator, n));
  for (const size_t n : {0, 1, 9001}) RETURN_IF_ERROR(CheckBroadcast(communicator, n));
  CheckAgree(communicator);
  return absl::OkStatus();
}

absl::Status CheckBadArguments(Communicator& communicator) {
  std::vector<float> in(3), out(3 * communicator.size());
  const std::vector<size_t> counts(communicator.size() + 1, 3);
  EXPECT_FALSE(communicator.AllGather(in.data(), counts, out.data(), DType::kF32).ok());
  EXPECT_FALSE(communicator.Gather(in.data(), {}, out.data(), DType::kF32, 0).ok());
  EXPECT_FALSE(communicator.AllReduceSum(in.data(), 3, DType::kF16).ok());
  return CheckSum(communicator, 5);  // and the group goes on
}

}  // namespace rootstock
