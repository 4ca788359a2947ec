#include "coordinator/tokenizer/token_table.h"

#include <utility>

namespace rootstock {

void TokenTable::Set(int32_t id, Entry entry) {
  if (entries_.size() <= static_cast<size_t>(id)) entries_.resize(id + 1);
  entry.present = true;
  ids_.insert_or_assign(entry.content, id);
  entries_[id] = std::move(entry);
}

const TokenTable::Entry* TokenTable::Find(int32_t id) const {
  if (id < 0 || id >= size() || !entries_[id].present) return nullptr;
  return &entries_[id];
}

std::optional<int32_t> TokenTable::Id(std::string_view content) const {
  const auto it = ids_.find(content);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::vector<int32_t> TokenTable::SpecialIds() const {
  std::vector<int32_t> ids;
  for (int32_t id = 0; id < size(); ++id) {
    if (entries_[id].present && entries_[id].special) ids.push_back(id);
  }
  return ids;
}

}  // namespace rootstock
