#include "common/lora/target_rules.h"

#include <time.h>

#include <algorithm>
#include <cctype>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr char kAny = '\1';
constexpr int64_t kTimeBudgetNs = 60'000'000;  // honest configs take a few milliseconds

int64_t ThreadTimeNs() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

// The suffix rule: NAME is TARGET or ends with ".TARGET".
bool HasSuffix(const std::string& name, const std::string& target) {
  if (!absl::EndsWith(name, target)) return false;
  return name.size() == target.size() || name[name.size() - target.size() - 1] == '.';
}

// Reads KEY as plain text; false when it needs a regex.
bool ReadPlain(const std::string& key, std::string& plain, bool& anchored) {
  size_t i = 0;
  anchored = !key.empty() && key[0] == '^';
  if (anchored) ++i;
  for (; i < key.size(); ++i) {
    if (key[i] == '\\' && i + 1 < key.size() && key[i + 1] == '.') {
      plain += '.';
      ++i;
    } else if (key[i] == '.') {
      plain += kAny;
    } else if (std::isalnum(static_cast<unsigned char>(key[i])) || key[i] == '_') {
      plain += key[i];
    } else {
      return false;
    }
  }
  return !plain.empty();
}

}  // namespace

absl::StatusOr<PatternKey> PatternKey::Compile(const std::string& key, const std::string& field) {
  PatternKey out;
  if (ReadPlain(key, out.plain_, out.anchored_)) return out;
  out.plain_.clear();
  // The key alone first: "a)(b" must not become valid inside the parentheses.
  RETURN_IF_ERROR(PythonPattern::Compile(key, field).status());
  ASSIGN_OR_RETURN(PythonPattern regex,
                   PythonPattern::Compile(absl::StrCat("(.*\\.)?(", key, ")"), field));
  out.regex_.push_back(std::move(regex));
  return out;
}

absl::StatusOr<bool> PatternKey::Matches(const std::string& name) {
  bool matches = false;
  if (!regex_.empty()) {
    ASSIGN_OR_RETURN(matches, regex_[0].FullMatch(name));
  } else if (name.size() >= plain_.size()) {
    const size_t at = name.size() - plain_.size();
    matches = at == 0 || (!anchored_ && name[at - 1] == '.');
    for (size_t i = 0; matches && i < plain_.size(); ++i) {
      matches = plain_[i] == kAny || plain_[i] == name[at + i];
    }
  }
  ever_matched_ = ever_matched_ || matches;
  return matches;
}

absl::StatusOr<TargetRules> TargetRules::Create(const PeftConfig& config) {
  TargetRules out(config);
  out.deadline_ns_ = ThreadTimeNs() + kTimeBudgetNs;
  const auto compile = [](const std::string& pattern, const char* field,
                          std::vector<PythonPattern>& to) -> absl::Status {
    ASSIGN_OR_RETURN(PythonPattern regex, PythonPattern::Compile(pattern, field));
    to.push_back(std::move(regex));
    return absl::OkStatus();
  };
  if (config.targets_are_regex && !config.all_linear) {
    RETURN_IF_ERROR(compile(config.target_modules[0], "target_modules", out.targets_));
  }
  // PEFT takes an empty string for no exclusion.
  if (config.excludes_are_regex && !config.exclude_modules[0].empty()) {
    RETURN_IF_ERROR(compile(config.exclude_modules[0], "exclude_modules", out.excludes_));
  }
  for (const std::string& p : config.layers_pattern) {
    RETURN_IF_ERROR(PythonPattern::Compile(p, "layers_pattern").status());
    RETURN_IF_ERROR(compile(absl::StrCat("(?:^|.*?\\.)", p, "\\.(?P<idx>\\d+)\\."),
                            "layers_pattern", out.layers_));
  }
  if (config.layers_pattern.empty() && !config.layers_to_transform.empty()) {
    RETURN_IF_ERROR(compile(".*?\\.[^.]*\\.(?P<idx>\\d+)\\.", "layers_pattern", out.layers_));
  }
  for (const auto& [key, rank] : config.rank_pattern) {
    RETURN_IF_ERROR(out.CheckTime());
    ASSIGN_OR_RETURN(PatternKey compiled, PatternKey::Compile(key, "rank_pattern"));
    out.ranks_.push_back(std::move(compiled));
  }
  for (const auto& [key, alpha] : config.alpha_pattern) {
    RETURN_IF_ERROR(out.CheckTime());
    ASSIGN_OR_RETURN(PatternKey compiled, PatternKey::Compile(key, "alpha_pattern"));
    out.alphas_.push_back(std::move(compiled));
  }
  out.target_used_.resize(config.target_modules.size());
  return out;
}

absl::Status TargetRules::CheckTime() const {
  if (ThreadTimeNs() <= deadline_ns_) return absl::OkStatus();
  return InvalidField(Reason::kConfigInvalid, kPeftConfigFile, "",
                      "matching its patterns takes too long");
}

absl::StatusOr<bool> TargetRules::InLayers(const std::string& name) {
  if (config_.layers_to_transform.empty()) return true;
  for (PythonPattern& pattern : layers_) {
    ASSIGN_OR_RETURN(const auto index, pattern.MatchIndex(name));
    if (!index) continue;
    const auto& layers = config_.layers_to_transform;
    return std::any_of(layers.begin(), layers.end(),
                       [&](int layer) { return absl::StrCat(layer) == *index; });
  }
  return false;
}

absl::StatusOr<bool> TargetRules::TargetsName(const std::string& name) {
  if (config_.all_linear) return true;
  if (config_.targets_are_regex) return targets_[0].FullMatch(name);
  bool found = false;
  bool whole = false;  // a full path is adapted whatever its layer
  for (size_t i = 0; i < config_.target_modules.size(); ++i) {
    if (!HasSuffix(name, config_.target_modules[i])) continue;
    found = true;
    target_used_[i] = true;
    whole = whole || name == config_.target_modules[i];
  }
  if (!found || whole) return found;
  return InLayers(name);
}

absl::StatusOr<bool> TargetRules::Targets(std::span<const std::string> names) {
  RETURN_IF_ERROR(CheckTime());
  for (const std::string& name : names) {
    if (!excludes_.empty()) {
      ASSIGN_OR_RETURN(const bool excluded, excludes_[0].FullMatch(name));
      if (excluded) return false;
    }
    if (config_.excludes_are_regex) continue;
    for (const std::string& e : config_.exclude_modules) {
      if (HasSuffix(name, e)) return false;
    }
  }
  for (const std::string& name : names) {
    ASSIGN_OR_RETURN(const bool targeted, TargetsName(name));
    if (targeted) return true;
  }
  return false;
}

absl::StatusOr<int> TargetRules::FirstMatch(std::vector<PatternKey>& keys,
                                            std::span<const std::string> names) {
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i].is_regex()) RETURN_IF_ERROR(CheckTime());
    for (const std::string& name : names) {
      ASSIGN_OR_RETURN(const bool matches, keys[i].Matches(name));
      if (matches) return static_cast<int>(i);
    }
  }
  return -1;
}

absl::StatusOr<int> TargetRules::LoraRank(std::span<const std::string> names) {
  ASSIGN_OR_RETURN(const int i, FirstMatch(ranks_, names));
  return i < 0 ? config_.r : config_.rank_pattern[i].second;
}

absl::StatusOr<double> TargetRules::Alpha(std::span<const std::string> names) {
  ASSIGN_OR_RETURN(const int i, FirstMatch(alphas_, names));
  return i < 0 ? config_.lora_alpha : config_.alpha_pattern[i].second;
}

std::vector<std::string> TargetRules::Unused() const {
  std::vector<std::string> out;
  const auto note = [&](const char* field, const std::string& key) {
    out.push_back(absl::StrCat(field, "[", key.substr(0, 100), "] matches nothing"));
  };
  if (!config_.targets_are_regex) {
    for (size_t i = 0; i < target_used_.size(); ++i) {
      if (!target_used_[i]) note("target_modules", config_.target_modules[i]);
    }
  }
  // A later key that never came to be asked is as unused as one that does not match.
  for (size_t i = 0; i < ranks_.size(); ++i) {
    if (!ranks_[i].ever_matched()) note("rank_pattern", config_.rank_pattern[i].first);
  }
  for (size_t i = 0; i < alphas_.size(); ++i) {
    if (!alphas_[i].ever_matched()) note("alpha_pattern", config_.alpha_pattern[i].first);
  }
  return out;
}

}  // namespace rootstock
