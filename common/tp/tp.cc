#include "common/tp/tp.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr int kAlign = 8;  // elements: 16 bytes of bf16

absl::Status CannotSplit(const ModelSpec& model, int tp_size, const std::string& why) {
  return InvalidField(Reason::kCannotSplit, "tp_size", absl::StrCat(tp_size),
                      absl::StrCat("can't split ", model.num_heads, " query heads and ",
                                   model.num_kv_heads, " KV heads: ", why));
}

// Fills heads and kv_heads of `shards`.
absl::Status SplitHeads(const ModelSpec& model, std::vector<TpShard>& shards) {
  const int tp_size = static_cast<int>(shards.size());
  const int group = model.num_heads / model.num_kv_heads;
  if (tp_size <= model.num_kv_heads) {
    for (int rank = 0; rank < tp_size; ++rank) {
      const Range kv = EvenRange(model.num_kv_heads, tp_size, rank, 1);
      shards[rank].kv_heads = kv;
      shards[rank].heads = {kv.begin * group, kv.end * group};
    }
    return absl::OkStatus();
  }
  if (tp_size % model.num_kv_heads != 0) {
    return CannotSplit(model, tp_size, "more ranks than KV heads need a multiple of them");
  }
  const int copies = tp_size / model.num_kv_heads;
  if (group % copies != 0) {
    return CannotSplit(model, tp_size,
                       absl::StrCat(copies, " ranks can't share the ", group,
                                    " query heads of a KV head equally"));
  }
  const int share = group / copies;
  for (int rank = 0; rank < tp_size; ++rank) {
    const int kv = rank / copies;
    shards[rank].kv_heads = {kv, kv + 1};
    shards[rank].heads = {rank * share, (rank + 1) * share};
  }
  return absl::OkStatus();
}

}  // namespace

Range EvenRange(int n, int tp_size, int tp_rank, int align) {
  const int units = (n + align - 1) / align;
  const int base = units / tp_size;
  const int extra = units % tp_size;
  const int begin = tp_rank * base + std::min(tp_rank, extra);
  const int end = begin + base + (tp_rank < extra ? 1 : 0);
  return {std::min(n, begin * align), std::min(n, end * align)};
}

Range LoraPieceRange(int lora_rank, int tp_size, int piece) {
  const int share = (lora_rank + tp_size - 1) / tp_size;
  return {std::min(lora_rank, piece * share), std::min(lora_rank, (piece + 1) * share)};
}

Range LoraOutputSlice(int out_features, int tp_size, int tp_rank) {
  return EvenRange(out_features, tp_size, tp_rank, kAlign);
}

Range TpPlan::sharded_features(int tp_rank, Module m) const {
  const TpShard& s = shards[tp_rank];
  switch (m) {
    case Module::kQ:
    case Module::kO:
      return {s.heads.begin * head_dim, s.heads.end * head_dim};
    case Module::kK:
    case Module::kV:
      return {s.kv_heads.begin * head_dim, s.kv_heads.end * head_dim};
    case Module::kGate:
    case Module::kUp:
    case Module::kDown:
      return s.ffn;
  }
  return {};
}

int TpPlan::max_kv_heads() const {
  int most = 0;
  for (const TpShard& s : shards) most = std::max(most, s.kv_heads.size());
  return most;
}

absl::StatusOr<TpPlan> MakeTpPlan(const ModelSpec& model, int tp_size) {
  if (tp_size < 1) {
    return InvalidField(Reason::kCannotSplit, "tp_size", absl::StrCat(tp_size),
                        "must be at least 1");
  }
  TpPlan plan;
  plan.head_dim = model.head_dim;
  plan.shards.resize(tp_size);
  RETURN_IF_ERROR(SplitHeads(model, plan.shards));
  for (int rank = 0; rank < tp_size; ++rank) {
    TpShard& s = plan.shards[rank];
    s.ffn = EvenRange(model.ffn_size, tp_size, rank, kAlign);
    s.vocab = EvenRange(model.vocab_size, tp_size, rank, kAlign);
    if (s.ffn.size() == 0 || s.vocab.size() == 0) {
      return CannotSplit(model, tp_size,
                         absl::StrCat("ffn ", model.ffn_size, " or vocabulary ", model.vocab_size,
                                      " leaves a rank empty in units of ", kAlign));
    }
  }
  return plan;
}

}  // namespace rootstock
