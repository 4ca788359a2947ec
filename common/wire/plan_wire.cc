#include "common/wire/plan_wire.h"

#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/wire/step_wire.h"
#include "common/wire/tier_wire.h"
#include "rootstock/v1/group.pb.h"

namespace rootstock {
namespace {

absl::Status Bad(const std::string& field, const std::string& value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, value, text);
}

void EpochToProto(const Epoch& in, v1::Epoch* out) {
  out->set_incarnation(in.incarnation);
  out->set_attach(in.attach);
}

Epoch EpochFromProto(const v1::Epoch& in) { return {in.incarnation(), in.attach()}; }

struct KindToProto {
  v1::Command* out;
  void operator()(const StepPlan& step) const { StepToProto(step, out->mutable_step()); }
  void operator()(const LoadAdapter& load) const {
    v1::LoadAdapter* l = out->mutable_load();
    l->set_digest(DigestToBytes(load.digest));
    l->set_layout_id(load.layout_id);
    l->set_sharding(static_cast<uint32_t>(load.sharding));
    IdsToProto(load.pages, l->mutable_pages());
  }
  void operator()(const ReleaseSlots& release) const {
    IdsToProto(release.slots, out->mutable_release()->mutable_slots());
  }
  void operator()(const PrefetchAdapter& prefetch) const {
    PrefetchToProto(prefetch, out->mutable_prefetch());
  }
  void operator()(const DropAdapter& drop) const { DropToProto(drop, out->mutable_drop()); }
  void operator()(const PinAdapter& pin) const { PinToProto(pin, out->mutable_pin()); }
};

absl::StatusOr<LoadAdapter> LoadFromProto(const v1::LoadAdapter& in) {
  LoadAdapter out;
  ASSIGN_OR_RETURN(out.digest, DigestFromBytes(in.digest(), "command.load.digest"));
  ASSIGN_OR_RETURN(out.sharding, ShardingFromProto(in.sharding(), "command.load.sharding"));
  out.layout_id = in.layout_id();
  out.pages = IdsFromProto<PageId>(in.pages());
  return out;
}

}  // namespace

std::string DigestToBytes(const Digest& digest) {
  return std::string(reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size());
}

absl::StatusOr<Digest> DigestFromBytes(const std::string& bytes, const std::string& field) {
  Digest out;
  if (bytes.size() != out.bytes.size()) {
    return Bad(field, absl::StrCat(bytes.size()), "a digest has 32 bytes");
  }
  std::memcpy(out.bytes.data(), bytes.data(), bytes.size());
  return out;
}

void ToProto(const Command& in, v1::Command* out) {
  out->Clear();
  out->set_id(in.id.value);
  EpochToProto(in.epoch, out->mutable_epoch());
  std::visit(KindToProto{out}, in.kind);
}

absl::StatusOr<Command> FromProto(const v1::Command& in) {
  if (!in.has_epoch()) return Bad("command.epoch", "", "is missing");
  Command out{CommandId(in.id()), EpochFromProto(in.epoch()), {}};
  switch (in.kind_case()) {
    case v1::Command::kStep: {
      ASSIGN_OR_RETURN(out.kind, StepFromProto(in.step()));
      return out;
    }
    case v1::Command::kLoad: {
      ASSIGN_OR_RETURN(out.kind, LoadFromProto(in.load()));
      return out;
    }
    case v1::Command::kRelease:
      out.kind = ReleaseSlots{IdsFromProto<SequenceSlot>(in.release().slots())};
      return out;
    case v1::Command::kPrefetch: {
      ASSIGN_OR_RETURN(out.kind, PrefetchFromProto(in.prefetch()));
      return out;
    }
    case v1::Command::kDrop: {
      ASSIGN_OR_RETURN(out.kind, DropFromProto(in.drop()));
      return out;
    }
    case v1::Command::kPin: {
      ASSIGN_OR_RETURN(out.kind, PinFromProto(in.pin()));
      return out;
    }
    case v1::Command::KIND_NOT_SET:
      break;
  }
  return Bad("command.kind", "", "missing, or newer than this build");
}

void ToProto(const absl::Status& in, v1::Outcome* out) {
  out->Clear();
  out->set_code(static_cast<uint32_t>(in.code()));
  out->set_message(std::string(in.message()));
  if (const auto detail = GetErrorDetail(in); detail.has_value()) {
    out->set_reason(ReasonName(detail->reason));
    out->set_field(detail->field);
    out->set_value(detail->value);
  }
}

absl::Status StatusFromProto(const v1::Outcome& in) {
  if (in.code() == 0) return absl::OkStatus();
  const auto code =
      in.code() > 16 ? absl::StatusCode::kUnknown : static_cast<absl::StatusCode>(in.code());
  absl::Status out(code, in.message());
  const auto reason = ReasonFromName(in.reason());
  if (!reason.has_value()) return out;
  // The message may have been annotated since: keep it, and take the detail alone.
  MakeError(code, *reason, in.field(), in.value(), "")
      .ForEachPayload([&out](auto url, const absl::Cord& detail) { out.SetPayload(url, detail); });
  return out;
}

void ToProto(const Completion& in, v1::Completion* out) {
  out->Clear();
  out->set_command_id(in.id.value);
  ToProto(in.outcome, out->mutable_outcome());
  ResultToProto(in.step, out->mutable_step());
  TiersOfCompletionToProto(in, out);
}

absl::StatusOr<Completion> FromProto(const v1::Completion& in) {
  if (!in.has_outcome()) return Bad("completion.outcome", "", "is missing");
  Completion out{CommandId(in.command_id()), StatusFromProto(in.outcome()), {}};
  ASSIGN_OR_RETURN(out.step, ResultFromProto(in.step()));
  RETURN_IF_ERROR(TiersOfCompletionFromProto(in, out));
  return out;
}

void ToProto(const GroupInfo& in, v1::Hello* out) {
  out->Clear();
  out->set_group(in.name);
  out->set_pool(in.pool);
  out->set_build(in.build);
  out->set_tp_size(in.tp_size);
  out->set_model_fingerprint(DigestToBytes(in.model_fingerprint));
  for (const RankInfo& rank : in.ranks) {
    v1::RankInfo* r = out->add_ranks();
    r->set_host(rank.host);
    r->set_device(rank.device);
    r->set_build(rank.build);
    r->set_pid(rank.pid);
    r->set_metrics_port(rank.metrics_port);
  }
}

absl::StatusOr<GroupInfo> FromProto(const v1::Hello& in) {
  if (in.group().empty()) return Bad("hello.group", "", "is empty");
  if (in.tp_size() == 0 || static_cast<uint32_t>(in.ranks_size()) != in.tp_size()) {
    return Bad("hello.ranks", absl::StrCat(in.ranks_size()),
               absl::StrCat("wants ", in.tp_size(), ", the tp_size"));
  }
  GroupInfo out;
  out.name = in.group();
  out.pool = in.pool();
  out.build = in.build();
  out.tp_size = in.tp_size();
  ASSIGN_OR_RETURN(out.model_fingerprint,
                   DigestFromBytes(in.model_fingerprint(), "hello.model_fingerprint"));
  for (const v1::RankInfo& r : in.ranks()) {
    out.ranks.push_back({r.host(), r.device(), r.build(), r.pid(), r.metrics_port()});
  }
  return out;
}

void ToProto(const AttachOrder& in, v1::AttachOrder* out) {
  out->Clear();
  EpochToProto(in.epoch, out->mutable_epoch());
  out->set_max_model_len(in.limits.max_model_len);
  out->set_max_num_seqs(in.limits.max_num_seqs);
  out->set_max_num_batched_tokens(in.limits.max_num_batched_tokens);
  out->set_max_logprobs(in.limits.max_logprobs);
}

absl::StatusOr<AttachOrder> FromProto(const v1::AttachOrder& in) {
  if (!in.has_epoch()) return Bad("attach.epoch", "", "is missing");
  return AttachOrder{
      EpochFromProto(in.epoch()),
      {in.max_model_len(), in.max_num_seqs(), in.max_num_batched_tokens(), in.max_logprobs()}};
}

void ToProto(const AttachReport& in, v1::AttachReport* out) {
  out->Clear();
  EpochToProto(in.epoch, out->mutable_epoch());
  out->set_num_pages(in.geometry.num_pages);
  out->set_page_bytes(in.geometry.page_bytes);
  out->set_page_tokens(in.geometry.page_tokens);
  out->set_compute_dtype(static_cast<uint32_t>(in.compute_dtype));
  for (const ResidentAdapter& adapter : in.adapters) {
    v1::ResidentAdapter* a = out->add_adapters();
    a->set_digest(DigestToBytes(adapter.digest));
    a->set_layout_id(adapter.layout_id);
    IdsToProto(adapter.pages, a->mutable_pages());
  }
  out->set_loads_by_layer(in.loads_by_layer);
  for (const CachedAdapter& adapter : in.cached) CachedToProto(adapter, out->add_cached());
}

absl::StatusOr<AttachReport> FromProto(const v1::AttachReport& in) {
  if (!in.has_epoch()) return Bad("report.epoch", "", "is missing");
  if (in.num_pages() < 2) {
    return Bad("report.num_pages", absl::StrCat(in.num_pages()), "wants scratch and one more");
  }
  if (in.page_bytes() == 0 || in.page_bytes() % kRowAlignment != 0) {
    return Bad("report.page_bytes", absl::StrCat(in.page_bytes()), "wants a multiple of 128");
  }
  if (in.page_tokens() == 0) return Bad("report.page_tokens", "0", "must be positive");
  if (in.compute_dtype() > static_cast<uint32_t>(DType::kF16)) {
    return Bad("report.compute_dtype", absl::StrCat(in.compute_dtype()), "unknown type");
  }
  AttachReport out;
  out.epoch = EpochFromProto(in.epoch());
  out.geometry = {in.num_pages(), in.page_bytes(), in.page_tokens()};
  out.compute_dtype = static_cast<DType>(in.compute_dtype());
  for (int i = 0; i < in.adapters_size(); ++i) {
    const v1::ResidentAdapter& a = in.adapters(i);
    ASSIGN_OR_RETURN(const Digest digest,
                     DigestFromBytes(a.digest(), absl::StrCat("report.adapters[", i, "].digest")));
    out.adapters.push_back({digest, a.layout_id(), IdsFromProto<PageId>(a.pages())});
  }
  out.loads_by_layer = in.loads_by_layer();
  for (int i = 0; i < in.cached_size(); ++i) {
    ASSIGN_OR_RETURN(CachedAdapter adapter,
                     CachedFromProto(in.cached(i), absl::StrCat("report.cached[", i, "]")));
    out.cached.push_back(std::move(adapter));
  }
  return out;
}

}  // namespace rootstock
