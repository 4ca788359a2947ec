#include "worker/link/rendezvous.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

constexpr char kPool[] = "unified";
constexpr char kCpu[] = "cpu";  // Device::kind of the host's processor

struct Peer {
  GroupInfo info;         // a group of one
  PageGeometry geometry;  // 0 pages: as many as fit, which the first attach finds
  DType weight_dtype = DType::kF32;
  std::string model_name, device_kind, nccl;
};

absl::StatusOr<std::vector<Peer>> Exchange(GroupBus& bus, const RankHello& mine) {
  v1::Hello hello;
  ToProto(GroupInfo{mine.group, kPool, mine.rank.build, 1, mine.model_fingerprint, {mine.rank}},
          &hello);
  v1::AttachReport report;
  ToProto(AttachReport{{}, mine.geometry, mine.weight_dtype, {}}, &report);
  const std::vector<std::string> hellos = bus.AllGather(hello.SerializeAsString());
  const std::vector<std::string> reports = bus.AllGather(report.SerializeAsString());
  const std::vector<std::string> names = bus.AllGather(mine.model_name);
  const std::vector<std::string> kinds = bus.AllGather(mine.device_kind);
  const std::vector<std::string> nccl = bus.AllGather(mine.nccl);
  std::vector<Peer> peers;
  for (size_t r = 0; r < hellos.size(); ++r) {
    hello.ParseFromString(hellos[r]);
    report.ParseFromString(reports[r]);
    Peer& peer = peers.emplace_back();
    ASSIGN_OR_RETURN(peer.info, FromProto(hello));
    peer.geometry = {report.num_pages(), report.page_bytes(), report.page_tokens()};
    peer.weight_dtype = static_cast<DType>(report.compute_dtype());
    peer.model_name = names[r];
    peer.device_kind = kinds[r];
    peer.nccl = nccl[r];
  }
  return peers;
}

absl::Status Same(size_t tp_rank, const std::string& field, const std::string& value,
                  const std::string& first) {
  if (value == first) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kGroupMismatch, field, value,
                   absl::StrCat("of tp_rank ", tp_rank, " differs from ", first, " of tp_rank 0"));
}

std::string Model(const Peer& peer) {
  return absl::StrCat(peer.model_name, " (", peer.info.model_fingerprint.Short(), ")");
}

absl::Status Compare(size_t tp_rank, const Peer& peer, const Peer& first) {
  RETURN_IF_ERROR(Same(tp_rank, "build", peer.info.build, first.info.build));
  RETURN_IF_ERROR(Same(tp_rank, "device kind", peer.device_kind, first.device_kind));
  RETURN_IF_ERROR(Same(tp_rank, "NCCL", peer.nccl, first.nccl));
  RETURN_IF_ERROR(Same(tp_rank, "group", peer.info.name, first.info.name));
  RETURN_IF_ERROR(
      Same(tp_rank, "dtype", DTypeName(peer.weight_dtype), DTypeName(first.weight_dtype)));
  if (peer.info.model_fingerprint != first.info.model_fingerprint) {
    RETURN_IF_ERROR(Same(tp_rank, "model", Model(peer), Model(first)));
  }
  return Same(tp_rank, "page_tokens", absl::StrCat(peer.geometry.page_tokens),
              absl::StrCat(first.geometry.page_tokens));
}

// A GPU holds one tp_rank.
absl::Status CheckDevices(const std::vector<Peer>& peers) {
  for (size_t r = 0; r < peers.size(); ++r) {
    const RankInfo& rank = peers[r].info.ranks[0];
    for (size_t other = 0; peers[r].device_kind != kCpu && other < r; ++other) {
      if (peers[other].info.ranks[0].device != rank.device) continue;
      return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kGroupMismatch, "device",
                       rank.device,
                       absl::StrCat("is that of tp_rank ", other, " and of tp_rank ", r));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Group> Rendezvous(GroupBus& bus, const RankHello& mine) {
  ASSIGN_OR_RETURN(const std::vector<Peer> peers, Exchange(bus, mine));
  Group group{peers[0].info, peers[0].geometry};
  group.info.tp_size = static_cast<uint32_t>(peers.size());
  group.info.ranks.clear();
  for (size_t r = 0; r < peers.size(); ++r) {
    RETURN_IF_ERROR(Compare(r, peers[r], peers[0]));
    const PageGeometry& geometry = peers[r].geometry;
    group.geometry.num_pages = std::min(group.geometry.num_pages, geometry.num_pages);
    group.geometry.page_bytes = std::max(group.geometry.page_bytes, geometry.page_bytes);
    group.info.ranks.push_back(peers[r].info.ranks[0]);
  }
  RETURN_IF_ERROR(CheckDevices(peers));
  return group;
}

}  // namespace rootstock
