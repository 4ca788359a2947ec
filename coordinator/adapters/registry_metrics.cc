#include "coordinator/adapters/registry_metrics.h"

#include <algorithm>
#include <string>
#include <vector>

namespace rootstock {
namespace {

constexpr AdapterState kStates[] = {AdapterState::kStaged, AdapterState::kActive,
                                    AdapterState::kRetired, AdapterState::kFailed};

// The enum's first block is the closed list of the metric.
std::vector<std::string> RejectReasons() {
  std::vector<std::string> out;
  for (int i = 0; i <= static_cast<int>(Reason::kRowTooLong); ++i) {
    out.push_back(ReasonName(static_cast<Reason>(i)));
  }
  return out;
}

}  // namespace

RegistryMetrics::RegistryMetrics(Metrics& metrics, std::optional<ObjectTierGauges> object)
    : object_(object) {
  std::vector<std::string> states;
  for (const AdapterState s : kStates) states.push_back(AdapterStateName(s));
  const auto adapters =
      metrics.MakeGauge("adapters", "Adapter names by state", {{"state", states}});
  for (const AdapterState s : kStates) {
    adapters_[static_cast<size_t>(s)] = adapters.At(AdapterStateName(s));
  }
  rejects_ = metrics.MakeCounter("adapter_rejects_total", "Adapters refused, by reason",
                                 {{"reason", RejectReasons()}});
  fsync_ = metrics
               .MakeHistogram("registry_log_fsync_duration_seconds",
                              "Durable commit of one registry change",
                              {.0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1})
               .At();
  revision_ = metrics.MakeGauge("registry_revision", "Changes of the registry, ever").At();
  log_bytes_ =
      metrics.MakeGauge("registry_log_bytes", "The registry's write-ahead log on disk").At();
  pinned_ = metrics
                .MakeGauge("registry_pinned_adapters", "Adapter versions that are pinned",
                           {{"tenant_class", {"default"}}})
                .At("default");
  const auto flips = metrics.MakeCounter("adapter_alias_flips_total", "Changes of aliases",
                                         {{"result", {"ok", "refused", "error"}}});
  flips_ = {flips.At("ok"), flips.At("refused"), flips.At("error")};
  leaks_ = metrics
               .MakeCounter("registry_refcount_leaks_total",
                            "Holds of contents that outlived every request")
               .At();
}

void RegistryMetrics::Rejected(Reason reason) const {
  if (reason <= Reason::kRowTooLong) rejects_.At(ReasonName(reason)).Add();
}

}  // namespace rootstock
