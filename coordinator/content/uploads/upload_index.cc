#include "coordinator/content/uploads/upload_index.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

absl::Status Over(const std::string& field, const std::string& value, const std::string& why) {
  return MakeError(absl::StatusCode::kResourceExhausted, Reason::kQuota, field, value, why);
}

uint64_t& CountOf(UploadState& state, const std::string& file) {
  return std::find_if(state.files.begin(), state.files.end(),
                      [&](const UploadFile& f) { return f.name == file; })
      ->received;
}

uint64_t AllOf(const UploadState& state) {
  uint64_t sum = 0;
  for (const UploadFile& file : state.files) sum += file.received;
  return sum;
}

}  // namespace

bool UploadState::is_complete() const {
  return std::all_of(files.begin(), files.end(),
                     [](const UploadFile& f) { return f.received == f.bytes; });
}

UploadIndex::Entry* UploadIndex::Find(const std::string& id) {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

const UploadIndex::Entry* UploadIndex::Find(const std::string& id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

UploadIndex::Sum UploadIndex::SumOf(const std::string& tenant) const {
  const auto it = tenants_.find(tenant);
  return it == tenants_.end() ? Sum{} : it->second;
}

absl::Status UploadIndex::CheckBytes(const std::string& tenant, uint64_t more) const {
  const uint64_t of_tenant = SumOf(tenant).bytes;
  if (of_tenant + more > limits_.max_tenant_bytes) {
    return Over("tenant", tenant,
                absl::StrCat(more, " bytes beside the ", of_tenant,
                             " of its unfinished uploads are more than the ",
                             limits_.max_tenant_bytes, " allowed"));
  }
  if (bytes_ + more <= limits_.max_bytes) return absl::OkStatus();
  return Over("files", "",
              absl::StrCat(more,
                           " bytes beside the unfinished uploads of all tenants are more "
                           "than the ",
                           limits_.max_bytes, " allowed"));
}

absl::Status UploadIndex::CheckNew(const std::string& tenant, const UploadState& state) const {
  const size_t uploads = SumOf(tenant).uploads;
  if (uploads >= limits_.max_tenant_uploads) {
    return Over("tenant", tenant,
                absl::StrCat("has ", uploads, " unfinished uploads, the most that are allowed"));
  }
  if (entries_.size() >= limits_.max_uploads) {
    return Over("files", "", "there are too many unfinished uploads");
  }
  uint64_t announced = 0;
  for (const UploadFile& file : state.files) announced += file.bytes;
  return CheckBytes(tenant, announced);
}

UploadIndex::Entry& UploadIndex::Add(Entry entry) {
  const uint64_t received = AllOf(entry.state);
  Sum& sum = tenants_[entry.tenant];
  ++sum.uploads;
  sum.bytes += received;
  bytes_ += received;
  by_use_.emplace(entry.used, entry.state.id);
  const std::string id = entry.state.id;
  return entries_.emplace(id, std::move(entry)).first->second;
}

void UploadIndex::Erase(const std::string& id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  const uint64_t received = AllOf(it->second.state);
  const auto sum = tenants_.find(it->second.tenant);
  sum->second.bytes -= received;
  bytes_ -= received;
  if (--sum->second.uploads == 0) tenants_.erase(sum);
  by_use_.erase({it->second.used, id});
  entries_.erase(it);
}

absl::Status UploadIndex::Take(Entry& entry, const std::string& file, uint64_t bytes, Time now) {
  RETURN_IF_ERROR(CheckBytes(entry.tenant, bytes));
  CountOf(entry.state, file) += bytes;
  tenants_.at(entry.tenant).bytes += bytes;
  bytes_ += bytes;
  by_use_.erase({entry.used, entry.state.id});
  entry.used = now;
  by_use_.emplace(now, entry.state.id);
  return absl::OkStatus();
}

void UploadIndex::GiveBack(Entry& entry, const std::string& file, uint64_t bytes) {
  CountOf(entry.state, file) -= bytes;
  tenants_.at(entry.tenant).bytes -= bytes;
  bytes_ -= bytes;
}

std::vector<std::string> UploadIndex::IdleSince(Time time) const {
  std::vector<std::string> out;
  for (auto it = by_use_.begin(); it != by_use_.end() && it->first < time; ++it) {
    if (!entries_.at(it->second).busy) out.push_back(it->second);
  }
  return out;
}

}  // namespace rootstock
