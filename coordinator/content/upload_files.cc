#include "coordinator/content/upload_files.h"

#include <algorithm>
#include <system_error>

namespace rootstock {

namespace fs = std::filesystem;

fs::path PartOf(const fs::path& file) { return file.string() + ".part"; }

uint64_t ReceivedOf(const fs::path& file, uint64_t bytes) {
  std::error_code error;
  if (fs::exists(file, error)) return bytes;
  const uint64_t part = fs::file_size(PartOf(file), error);
  return error ? 0 : std::min(part, bytes - 1);
}

}  // namespace rootstock
