#include "common/wire/tier_wire.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/plan_wire.h"

namespace rootstock {
namespace {

absl::Status Bad(const std::string& field, uint64_t value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, absl::StrCat(value), text);
}

absl::StatusOr<Tiers> TiersFromProto(uint32_t in, Tiers allowed, const std::string& field) {
  if (in == 0 || (in & ~uint32_t{allowed.bits}) != 0) {
    return Bad(field, in, absl::StrCat("wants bits of ", allowed.bits, ", at least one"));
  }
  return Tiers(static_cast<uint8_t>(in));
}

}  // namespace

absl::StatusOr<LoraSharding> ShardingFromProto(uint32_t in, const std::string& field) {
  if (in <= static_cast<uint32_t>(LoraSharding::kFullySharded)) {
    return static_cast<LoraSharding>(in);
  }
  return Bad(field, in, "unknown sharding");
}

void PrefetchToProto(const PrefetchAdapter& in, v1::PrefetchAdapter* out) {
  out->set_digest(DigestToBytes(in.digest));
  out->set_layout_id(in.layout_id);
  out->set_sharding(static_cast<uint32_t>(in.sharding));
  out->set_to_host(in.to_host);
  out->set_bytes(in.bytes);
}

absl::StatusOr<PrefetchAdapter> PrefetchFromProto(const v1::PrefetchAdapter& in) {
  PrefetchAdapter out;
  ASSIGN_OR_RETURN(out.digest, DigestFromBytes(in.digest(), "command.prefetch.digest"));
  ASSIGN_OR_RETURN(out.sharding, ShardingFromProto(in.sharding(), "command.prefetch.sharding"));
  out.layout_id = in.layout_id();
  out.to_host = in.to_host();
  out.bytes = in.bytes();
  return out;
}

void DropToProto(const DropAdapter& in, v1::DropAdapter* out) {
  out->set_digest(DigestToBytes(in.digest));
  out->set_tiers(in.tiers.bits);
}

absl::StatusOr<DropAdapter> DropFromProto(const v1::DropAdapter& in) {
  DropAdapter out;
  ASSIGN_OR_RETURN(out.digest, DigestFromBytes(in.digest(), "command.drop.digest"));
  ASSIGN_OR_RETURN(out.tiers, TiersFromProto(in.tiers(), kAllTiers, "command.drop.tiers"));
  return out;
}

void PinToProto(const PinAdapter& in, v1::PinAdapter* out) {
  out->set_digest(DigestToBytes(in.digest));
  out->set_tiers(in.tiers.bits);
  out->set_pinned(in.pinned);
}

absl::StatusOr<PinAdapter> PinFromProto(const v1::PinAdapter& in) {
  PinAdapter out;
  ASSIGN_OR_RETURN(out.digest, DigestFromBytes(in.digest(), "command.pin.digest"));
  ASSIGN_OR_RETURN(out.tiers,
                   TiersFromProto(in.tiers(), Tier::kHost | Tier::kDisk, "command.pin.tiers"));
  out.pinned = in.pinned();
  return out;
}

void CachedToProto(const CachedAdapter& in, v1::CachedAdapter* out) {
  out->set_digest(DigestToBytes(in.digest));
  out->set_tier(static_cast<uint32_t>(in.tier));
  out->set_bytes(in.bytes);
}

absl::StatusOr<CachedAdapter> CachedFromProto(const v1::CachedAdapter& in,
                                              const std::string& field) {
  CachedAdapter out;
  ASSIGN_OR_RETURN(out.digest, DigestFromBytes(in.digest(), absl::StrCat(field, ".digest")));
  if (in.tier() != static_cast<uint32_t>(Tier::kHost) &&
      in.tier() != static_cast<uint32_t>(Tier::kDisk)) {
    return Bad(absl::StrCat(field, ".tier"), in.tier(), "must be 2 (host) or 4 (disk)");
  }
  out.tier = static_cast<Tier>(in.tier());
  out.bytes = in.bytes();
  return out;
}

void TiersOfCompletionToProto(const Completion& in, v1::Completion* out) {
  out->set_source(static_cast<uint32_t>(in.source));
  out->set_bytes(in.bytes);
  if (in.freed != TierBytes()) {
    out->mutable_freed()->set_device(in.freed.device);
    out->mutable_freed()->set_host(in.freed.host);
    out->mutable_freed()->set_disk(in.freed.disk);
  }
  for (const TierChange& change : in.tier_changes) {
    v1::TierChange* c = out->add_tier_changes();
    CachedToProto(change.adapter, c->mutable_adapter());
    c->set_present(change.present);
  }
}

absl::Status TiersOfCompletionFromProto(const v1::Completion& in, Completion& out) {
  if (in.source() > static_cast<uint32_t>(FetchSource::kObject)) {
    return Bad("completion.source", in.source(), "unknown source");
  }
  out.source = static_cast<FetchSource>(in.source());
  out.bytes = in.bytes();
  out.freed = {in.freed().device(), in.freed().host(), in.freed().disk()};
  for (int i = 0; i < in.tier_changes_size(); ++i) {
    TierChange change;
    ASSIGN_OR_RETURN(change.adapter,
                     CachedFromProto(in.tier_changes(i).adapter(),
                                     absl::StrCat("completion.tier_changes[", i, "].adapter")));
    change.present = in.tier_changes(i).present();
    out.tier_changes.push_back(std::move(change));
  }
  return absl::OkStatus();
}

}  // namespace rootstock
