#include "coordinator/adapters/alias.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "common/base/adapter_ref.h"
#include "common/base/digest.h"
#include "common/base/status.h"

namespace rootstock {

absl::Status CheckAliasTargets(const std::vector<AliasTarget>& targets) {
  if (targets.empty() || targets.size() > kMaxAliasTargets) {
    return InvalidField(Reason::kInvalidArgument, "targets", absl::StrCat(targets.size()),
                        absl::StrCat("an alias has 1 to ", kMaxAliasTargets, " targets"));
  }
  std::set<std::pair<std::string, uint32_t>> seen;
  for (const AliasTarget& target : targets) {
    const std::string text = AdapterRef{target.name, target.version}.Text();
    if (target.weight == 0 || target.weight > kMaxAliasWeight) {
      return InvalidField(Reason::kInvalidArgument, "weight", absl::StrCat(target.weight),
                          absl::StrCat("of ", text, ": must be from 1 to ", kMaxAliasWeight));
    }
    if (!seen.emplace(target.name, target.version).second) {
      return InvalidField(Reason::kInvalidArgument, "targets", text, "is named twice");
    }
  }
  return absl::OkStatus();
}

size_t ChooseAliasTarget(const std::string& alias, uint64_t revision,
                         const std::vector<AliasTarget>& targets, const std::string& request_id) {
  if (targets.size() <= 1) return 0;
  const uint64_t total =
      std::accumulate(targets.begin(), targets.end(), uint64_t{0},
                      [](uint64_t sum, const AliasTarget& t) { return sum + t.weight; });
  const std::string nul(1, '\0');
  const Digest digest = Sha256Of(absl::StrCat(alias, nul, revision, nul, request_id));
  uint64_t drawn = 0;
  for (int i = 0; i < 8; ++i) drawn = drawn << 8 | digest.bytes[static_cast<size_t>(i)];
  // 64 bits over at most 2^24 shares: no share is off by more than one in 2^40.
  uint64_t place = drawn % total;
  for (size_t i = 0; i < targets.size(); ++i) {
    if (place < targets[i].weight) return i;
    place -= targets[i].weight;
  }
  return targets.size() - 1;
}

std::string EncodeAliasTargets(const std::vector<AliasTarget>& targets) {
  return absl::StrJoin(targets, ",", [](std::string* out, const AliasTarget& t) {
    absl::StrAppend(out, t.name, "@", t.version, "=", t.weight);
  });
}

absl::StatusOr<std::vector<AliasTarget>> DecodeAliasTargets(const std::string& text) {
  std::vector<AliasTarget> out;
  if (text.empty()) return out;
  const absl::Status corrupt = MakeError(absl::StatusCode::kDataLoss, Reason::kIoError, "registry",
                                         "", "an alias's targets can't be read");
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto ref = ParseAdapterRef(halves.first);
    AliasTarget target;
    if (!ref || ref->version == 0 || !absl::SimpleAtoi(halves.second, &target.weight)) {
      return corrupt;
    }
    target.name = ref->name;
    target.version = ref->version;
    out.push_back(std::move(target));
  }
  // Weights of 0, say, would leave nothing to choose among.
  if (!CheckAliasTargets(out).ok() || EncodeAliasTargets(out) != text) return corrupt;
  return out;
}

}  // namespace rootstock
