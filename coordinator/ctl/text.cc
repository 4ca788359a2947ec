#include "coordinator/ctl/text.h"

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {

bool IsUtf8(const std::string& text) {
  try {
    nlohmann::json(text).dump();
    return true;
  } catch (const nlohmann::json::exception&) {
    return false;
  }
}

absl::StatusOr<std::string> ReadTextFile(const std::string& field, const std::string& path) {
  std::error_code error;
  if (std::filesystem::is_directory(path, error)) {
    return InvalidField(Reason::kPathInvalid, field, path, "is a folder");
  }
  std::ifstream file(path, std::ios::binary);
  if (!file) return InvalidField(Reason::kPathInvalid, field, path, "can't be opened");
  std::string text(std::istreambuf_iterator<char>(file), {});
  if (IsUtf8(text)) return text;
  return InvalidField(Reason::kInvalidArgument, field, path, "is not UTF-8");
}

absl::Status CheckArguments(int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    if (IsUtf8(argv[i])) continue;
    return InvalidField(Reason::kInvalidArgument, "argument", absl::StrCat(i), "is not UTF-8");
  }
  return absl::OkStatus();
}

}  // namespace rootstock
