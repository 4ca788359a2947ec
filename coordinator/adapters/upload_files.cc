#include "coordinator/adapters/upload_files.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace fs = std::filesystem;

absl::Status UploadIoError(const fs::path& file, int error) {
  const auto code = error == ENOSPC || error == EDQUOT ? absl::StatusCode::kResourceExhausted
                                                       : absl::StatusCode::kInternal;
  return MakeError(code, Reason::kIoError, "files", file.filename().string(),
                   absl::StrCat("cannot be stored: ", std::strerror(error)));
}

fs::path PartOf(const fs::path& file) { return file.string() + ".part"; }

uint64_t ReceivedOf(const fs::path& file, uint64_t bytes) {
  std::error_code error;
  if (fs::exists(file, error)) return bytes;
  const uint64_t part = fs::file_size(PartOf(file), error);
  return error ? 0 : std::min(part, bytes - 1);
}

absl::Status WriteWhole(const fs::path& file, const std::string& bytes) {
  {
    std::ofstream out(PartOf(file), std::ios::binary | std::ios::trunc);
    out << bytes;
    out.close();
    if (!out) return UploadIoError(file, errno != 0 ? errno : EIO);
  }
  std::error_code error;
  fs::rename(PartOf(file), file, error);
  return error ? UploadIoError(file, error.value()) : absl::OkStatus();
}

}  // namespace rootstock
