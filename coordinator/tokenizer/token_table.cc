#include "coordinator/tokenizer/token_table.h"

#include <algorithm>
#include <utility>

namespace rootstock {

void TokenTable::Set(int32_t id, Entry entry) {
  size_ = std::max(size_, id + 1);
  ids_.insert_or_assign(entry.content, id);
  entries_.insert_or_assign(id, std::move(entry));
}

void TokenTable::MarkSpecial(const absl::flat_hash_set<std::string>& spellings) {
  for (auto& [id, entry] : entries_) {
    if (spellings.contains(entry.ForDecoder())) entry.special = true;
  }
}

const TokenTable::Entry* TokenTable::Find(int32_t id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

std::optional<int32_t> TokenTable::Id(std::string_view content) const {
  const auto it = ids_.find(content);
  if (it == ids_.end()) return std::nullopt;
  return it->second;
}

std::vector<int32_t> TokenTable::SpecialIds() const {
  std::vector<int32_t> ids;
  for (const auto& [id, entry] : entries_) {
    if (entry.special) ids.push_back(id);
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace rootstock
