// Aliases: names that stand for versions of adapters, and change what they stand for.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

constexpr size_t kMaxAliasTargets = 16;
constexpr uint32_t kMaxAliasWeight = 1'000'000;

struct AliasTarget {
  std::string name;
  uint32_t version = 0;
  uint32_t weight = 1;  // its share of the requests, against the sum over all targets

  friend bool operator==(const AliasTarget&, const AliasTarget&) = default;
};

// An alias as one of its revisions left it. Revisions count from 1 and are never used again, also
// when the alias is removed and made anew.
struct AliasEntry {
  std::string name;
  std::string tenant;
  uint64_t revision = 0;
  std::vector<AliasTarget> targets;  // empty: the revision removed it
  int64_t changed_unix_ms = 0;
  uint64_t rolled_back_to = 0;  // the revision whose targets it took back; 0: none
};

// 1 to 16 targets, none twice, weights from 1 to a million. INVALID_ARGUMENT.
absl::Status CheckAliasTargets(const std::vector<AliasTarget>& targets);

// The index of the target that answers a request: the same at every call, on every machine, after
// every restart. Over many request ids each target gets its share.
size_t ChooseAliasTarget(const std::string& alias, uint64_t revision,
                         const std::vector<AliasTarget>& targets, const std::string& request_id);

// "pirate@2=9,pirate@3=1"; what the tables hold. Decoding gives DATA_LOSS for a text that no
// targets in order are encoded as; none for "".
std::string EncodeAliasTargets(const std::vector<AliasTarget>& targets);
absl::StatusOr<std::vector<AliasTarget>> DecodeAliasTargets(const std::string& text);

}  // namespace rootstock
