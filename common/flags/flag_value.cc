#include "common/flags/flag_value.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

absl::Status Bad(const FlagSpec& flag, const std::string& value, const std::string& why) {
  return InvalidField(Reason::kConfigInvalid, flag.name, value, why);
}

template <typename T>
constexpr const char* TypeName() {
  if constexpr (std::is_same_v<T, double>) return "a number";
  return "a whole number";
}

template <typename T>
bool ParseNumber(const std::string& text, T* out) {
  const char* end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, *out);
  if constexpr (std::is_same_v<T, double>) {
    if (!std::isfinite(*out)) return false;
  }
  return error == std::errc() && rest == end;
}

std::string Range(const FlagSpec& flag) {
  const bool low = flag.min > std::numeric_limits<double>::lowest();
  const bool high = flag.max < std::numeric_limits<double>::max();
  if (low && high) return absl::StrCat(flag.min, " to ", flag.max);
  return low ? absl::StrCat(flag.min, " or more") : absl::StrCat(flag.max, " or less");
}

template <typename T>
absl::Status SetNumber(const FlagSpec& flag, const std::string& text, T* target) {
  T value{};
  if (!ParseNumber(text, &value)) {
    return Bad(flag, text, absl::StrCat("not ", TypeName<T>()));
  }
  const double number = static_cast<double>(value);
  if (number < flag.min || number > flag.max) {
    return Bad(flag, text, absl::StrCat("must be ", Range(flag)));
  }
  *target = value;
  return absl::OkStatus();
}

absl::Status CheckAllowed(const FlagSpec& flag, const std::string& text) {
  if (flag.allowed.empty() || std::ranges::count(flag.allowed, text) > 0) return absl::OkStatus();
  return Bad(flag, text, absl::StrCat("must be one of ", absl::StrJoin(flag.allowed, ", ")));
}

std::string Default(const FlagSpec& flag) {
  if (flag.required) return " (required)";
  if (IsList(flag)) return " (may be repeated)";
  return std::visit(
      [](const auto& target) -> std::string {
        using T = std::remove_cvref_t<decltype(target)>;
        if constexpr (std::is_same_v<T, FlagSetter> ||
                      std::is_same_v<T, std::vector<std::string>*>) {
          return "";
        } else if constexpr (std::is_same_v<T, std::string*>) {
          return target->empty() ? "" : absl::StrCat(" (", *target, ")");
        } else if constexpr (std::is_same_v<T, bool*>) {
          return *target ? " (true)" : "";
        } else {
          return absl::StrCat(" (", *target, ")");
        }
      },
      flag.target);
}

bool IsSetter(const FlagSpec& flag, FlagSetter::Kind kind) {
  const auto* setter = std::get_if<FlagSetter>(&flag.target);
  return setter != nullptr && setter->kind == kind;
}

}  // namespace

bool IsList(const FlagSpec& flag) {
  return std::holds_alternative<std::vector<std::string>*>(flag.target) ||
         IsSetter(flag, FlagSetter::Kind::kList);
}

bool IsBool(const FlagSpec& flag) {
  return std::holds_alternative<bool*>(flag.target) || IsSetter(flag, FlagSetter::Kind::kSwitch);
}

std::string FlagPlaceholder(const FlagSpec& flag) {
  if (!flag.placeholder.empty()) return flag.placeholder;
  if (!flag.allowed.empty()) return absl::StrJoin(flag.allowed, "|");
  if (IsBool(flag)) return "";
  const bool text = IsList(flag) || std::holds_alternative<std::string*>(flag.target) ||
                    std::holds_alternative<FlagSetter>(flag.target);
  return text ? "TEXT" : "N";
}

absl::Status SetFlag(const FlagSpec& flag, const std::vector<std::string>& texts) {
  if (!IsList(flag) && texts.size() != 1) {
    return Bad(flag, absl::StrJoin(texts, ","), "takes exactly one value");
  }
  for (const std::string& text : texts) RETURN_IF_ERROR(CheckAllowed(flag, text));
  if (IsBool(flag) && texts.front() != "true" && texts.front() != "false") {
    return Bad(flag, texts.front(), "not true or false");
  }
  return std::visit(
      [&](const auto& target) -> absl::Status {
        using T = std::remove_cvref_t<decltype(target)>;
        if constexpr (std::is_same_v<T, FlagSetter>) {
          return target.set(texts);
        } else if constexpr (std::is_same_v<T, std::vector<std::string>*>) {
          *target = texts;
        } else if constexpr (std::is_same_v<T, bool*>) {
          *target = texts.front() == "true";
        } else if constexpr (std::is_same_v<T, std::string*>) {
          *target = texts.front();
        } else {
          return SetNumber(flag, texts.front(), target);
        }
        return absl::OkStatus();
      },
      flag.target);
}

std::string HelpText(const std::string& title, HelpLines lines,
                     const std::vector<FlagSpec>& table) {
  for (const FlagSpec& flag : table) {
    const std::string value = FlagPlaceholder(flag);
    lines.emplace_back(absl::StrCat("--", flag.name, value.empty() ? "" : " ", value),
                       absl::StrCat(flag.help, Default(flag)));
  }
  lines.emplace_back("--config FILE", "YAML with flag names as keys; flags win over it");
  lines.emplace_back("--help, --version", "print and leave");
  size_t width = 0;
  for (const auto& [left, right] : lines) width = std::max(width, left.size());
  std::string out = absl::StrCat(title, "\n");
  for (const auto& [left, right] : lines) {
    absl::StrAppend(&out, "  ", left, std::string(width + 2 - left.size(), ' '), right, "\n");
  }
  return out;
}

}  // namespace rootstock
