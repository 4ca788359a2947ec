// What a plan could get wrong is found before the first collective, on every tp_rank alike.
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/model/model.h"

namespace rootstock {
namespace {

absl::Status Wrong(const std::string& field, int64_t value, const std::string& text) {
  return InvalidField(Reason::kInvalidArgument, field, absl::StrCat(value), text);
}

absl::Status CheckRow(const ForwardBatch& batch, const ForwardRow& row, int begin,
                      const PageGeometry& geometry) {
  const int64_t tokens = static_cast<int64_t>(batch.token_ids.size());
  if (row.begin != begin || row.num_tokens < 1 || begin + row.num_tokens > tokens) {
    return Wrong("row", row.begin, "rows must cover all tokens in order");
  }
  for (int i = 0; i < row.num_tokens; ++i) {
    if (batch.positions[begin + i] != row.start_position + i) {
      return Wrong("position", batch.positions[begin + i], "differs from its row's");
    }
  }
  const int64_t end = int64_t{row.start_position} + row.num_tokens;
  if (static_cast<int64_t>(row.page_table.size()) * geometry.page_tokens < end) {
    return Wrong("page_table", static_cast<int64_t>(row.page_table.size()),
                 absl::StrCat("pages hold no place for ", end, " tokens"));
  }
  for (const uint32_t page : row.page_table) {
    if (page >= geometry.num_pages) {
      return Wrong("page", page, absl::StrCat("there are ", geometry.num_pages, " pages"));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status Model::CheckBatch(const ForwardBatch& batch) const {
  const int tokens = static_cast<int>(batch.token_ids.size());
  const int outputs = static_cast<int>(batch.logit_tokens.size());
  if (tokens > limits_.max_tokens || batch.positions.size() != batch.token_ids.size()) {
    return Wrong("tokens", tokens,
                 absl::StrCat("at most ", limits_.max_tokens, ", each with a position"));
  }
  if (outputs > limits_.max_outputs) {
    return Wrong("logit_tokens", outputs, absl::StrCat("at most ", limits_.max_outputs));
  }
  for (int i = 0; i < tokens; ++i) {
    const int32_t id = batch.token_ids[i];
    if (id < 0 ? SlotOf(id) >= static_cast<uint32_t>(limits_.num_slots) : id >= spec_.vocab_size) {
      return Wrong("token_id", batch.token_ids[i],
                   absl::StrCat("the vocabulary has ", spec_.vocab_size));
    }
    if (batch.positions[i] < 0 || batch.positions[i] >= limits_.max_positions) {
      return Wrong("position", batch.positions[i],
                   absl::StrCat("the context has ", limits_.max_positions));
    }
  }
  if (static_cast<int>(batch.rows.size()) > limits_.max_rows) {
    return Wrong("rows", static_cast<int64_t>(batch.rows.size()),
                 absl::StrCat("at most ", limits_.max_rows));
  }
  int begin = 0;
  for (const ForwardRow& row : batch.rows) {
    RETURN_IF_ERROR(CheckRow(batch, row, begin, parts_.slab->geometry()));
    begin += row.num_tokens;
  }
  if (begin != tokens) return Wrong("rows", begin, "rows must cover all tokens");
  for (const int32_t token : batch.logit_tokens) {
    if (token < 0 || token >= tokens) return Wrong("logit_token", token, "is not in the batch");
  }
  const size_t sites = kNumLoraViews * spec_.num_layers * kAllModules.size();
  for (const LoraSegment& segment : batch.segments) {
    if (segment.begin < 0 || segment.begin > segment.end || segment.end > tokens ||
        segment.adapter == nullptr || segment.adapter->sites().size() != sites) {
      return Wrong("segment", segment.begin, "is outside the batch or of another model");
    }
  }
  return absl::OkStatus();
}

}  // namespace rootstock
