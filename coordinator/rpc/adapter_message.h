// What clients read of an adapter: its entry, receipt, and where it is.
#pragma once

#include <map>
#include <optional>
#include <vector>

#include "absl/status/status.h"
#include "common/model/model_spec.h"
#include "common/tp/tp.h"
#include "coordinator/adapters/registry.h"
#include "coordinator/engine/engine.h"
#include "rootstock/v1/adapters.pb.h"

namespace rootstock {

// The group of a pin as clients read it: "*" for all.
std::string ShownPin(const std::string& group);

// Adapters as they were at one moment of the groups: any number of messages out of one status.
// Immutable; the model outlives it.
class AdapterMessages {
 public:
  AdapterMessages(const EngineStatus& status, const ModelSpec& model);

  // `content` may be null: there are no page counts and no modules then. INTERNAL when the stored
  // receipt can't be read.
  absl::Status Fill(const AdapterEntry& entry, const AdapterHandle& content,
                    v1::Adapter* out) const;
  void Fill(const AdapterEntry& entry, const AdapterHandle& content, v1::AdapterSummary* out) const;

 private:
  using PagesList = google::protobuf::RepeatedPtrField<v1::GroupPages>;
  using ResidencyList = google::protobuf::RepeatedPtrField<v1::Residency>;

  struct Group {
    std::string name;
    std::optional<TpPlan> tp;
    DType compute_dtype = DType::kF32;
    uint32_t page_bytes = 0;
    uint32_t usable_pages = 0;
    std::map<Digest, ResidentAdapter> resident;
    std::multimap<Digest, CachedAdapter> cached;  // on its nodes' hosts and disks
  };

  void AddPages(const AdapterHandle& content, PagesList* out) const;
  void AddSharding(const Group& group, const AdapterContent& content, uint64_t layout_id,
                   v1::Residency* out) const;
  void AddResidency(const Digest& digest, const AdapterHandle& content, ResidencyList* out) const;

  const ModelSpec& model_;
  const LoraShardingPolicy sharding_;
  std::vector<Group> groups_;
};

}  // namespace rootstock
