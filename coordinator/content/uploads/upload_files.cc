#include "coordinator/content/uploads/upload_files.h"

#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <fstream>
#include <nlohmann/json.hpp>
#include <system_error>

#include "common/base/status.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kManifest[] = "upload.json";
constexpr size_t kMaxManifestBytes = 64 << 10;  // of two files a few hundred

}  // namespace

std::string FormatManifest(const UploadManifest& manifest) {
  nlohmann::json files = nlohmann::json::array();
  for (const UploadFile& file : manifest.files) {
    files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"sha256", file.sha256.Hex()}});
  }
  const nlohmann::json json = {{"tenant", manifest.tenant}, {"files", std::move(files)}};
  return json.dump();
}

std::optional<UploadManifest> ParseManifest(const std::string& text) try {
  const nlohmann::json json = nlohmann::json::parse(text);
  UploadManifest out;
  out.tenant = json.at("tenant");
  for (const nlohmann::json& file : json.at("files")) {
    const auto sha256 = Digest::FromHex(file.at("sha256").get<std::string>());
    const nlohmann::json& bytes = file.at("bytes");
    if (!sha256 || !bytes.is_number_unsigned() || bytes == 0) return std::nullopt;
    out.files.push_back({file.at("name"), bytes, *sha256});
  }
  return out;
} catch (const nlohmann::json::exception&) {  // a disk has spoilt it
  return std::nullopt;
}

absl::StatusOr<std::optional<UploadManifest>> ReadManifest(const fs::path& dir) {
  errno = 0;
  std::ifstream in(dir / kManifest);
  if (!in && errno == ENOENT) return std::optional<UploadManifest>();
  std::string text(kMaxManifestBytes, '\0');
  if (in) in.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (!in.is_open() || in.bad()) return StoreError(dir / kManifest, errno);
  text.resize(static_cast<size_t>(in.gcount()));
  return ParseManifest(text);
}

absl::Status WriteManifest(const fs::path& dir, const UploadManifest& manifest) {
  return WriteDurably(dir / kManifest, FormatManifest(manifest));
}

fs::file_time_type LastUse(const fs::path& dir, const std::vector<UploadFile>& files) {
  std::vector<fs::path> paths = {dir / kManifest};
  for (const UploadFile& file : files) {
    paths.push_back(dir / file.name);
    paths.push_back(PartOf(dir / file.name));
  }
  auto newest = fs::file_time_type::min();
  for (const fs::path& path : paths) {
    std::error_code absent;
    const fs::file_time_type time = fs::last_write_time(path, absent);
    if (!absent) newest = std::max(newest, time);
  }
  return newest;
}

fs::path PartOf(const fs::path& file) { return file.string() + ".part"; }

uint64_t ReceivedOf(const fs::path& file, uint64_t bytes) {
  std::error_code error;
  if (fs::file_size(file, error) == bytes && !error) return bytes;
  const uint64_t part = fs::file_size(PartOf(file), error);
  return error ? 0 : std::min(part, bytes - 1);
}

absl::Status CompletePart(int fd, const fs::path& file) {
  if (fsync(fd) != 0 || rename(PartOf(file).c_str(), file.c_str()) != 0) {
    return StoreError(file, errno);
  }
  return SyncDirectory(file.parent_path());
}

}  // namespace rootstock
