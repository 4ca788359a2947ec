#include "coordinator/content/unknown_blobs.h"

#include <optional>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/base/log.h"
#include "coordinator/content/durable_file.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr char kAside[] = ".unknown";

// Files named by a digest. None when the directory is absent.
std::vector<std::pair<fs::path, Digest>> FilesOf(const fs::path& directory) {
  std::vector<std::pair<fs::path, Digest>> out;
  std::error_code error;
  for (fs::directory_iterator it(directory, error), end; !error && it != end; it.increment(error)) {
    const auto digest = Digest::FromHex(it->path().filename().string());
    if (digest) out.emplace_back(it->path(), *digest);
  }
  return out;
}

uint64_t SizeOf(const fs::path& file) {
  std::error_code error;
  const uint64_t bytes = fs::file_size(file, error);
  return error ? 0 : bytes;
}

}  // namespace

ContentCount CountContent(const fs::path& blobs) {
  std::vector<fs::path> directories = {blobs};  // with the marks of object stores
  std::error_code error;
  for (fs::directory_iterator it(blobs, error), end; !error && it != end; it.increment(error)) {
    std::error_code ignored;
    if (it->is_directory(ignored)) directories.push_back(it->path());
  }
  std::set<Digest> seen;
  ContentCount out;
  for (const fs::path& directory : directories) {
    for (const auto& [file, digest] : FilesOf(directory)) {
      seen.insert(digest);
      out.bytes += SizeOf(file);
    }
  }
  out.contents = seen.size();
  return out;
}

UnknownBlobs::UnknownBlobs(fs::path blobs, std::chrono::hours grace)
    : blobs_(std::move(blobs)), aside_(blobs_ / kAside), grace_(grace) {}

absl::Status UnknownBlobs::Open(const std::set<Digest>& keep) {
  const auto oldest = fs::file_time_type::clock::now() - grace_;
  for (const auto& [file, digest] : FilesOf(aside_)) {
    std::error_code error;
    const fs::path blob = blobs_ / digest.Hex();
    const bool there = fs::exists(blob, error);
    if (error) return StoreError(blob, error.value());
    if (keep.contains(digest) && !there) {
      fs::rename(file, blob, error);
      if (error) return StoreError(file, error.value());
    } else if (keep.contains(digest) || IsAtLeastAsOld(file, oldest)) {
      fs::remove(file, error);
    } else {
      ++count_.contents;
      count_.bytes += SizeOf(file);
    }
  }
  return absl::OkStatus();
}

void UnknownBlobs::SetAside(const Digest& digest) {
  const fs::path file = blobs_ / digest.Hex();
  const uint64_t bytes = SizeOf(file);
  std::error_code error;
  if (grace_.count() == 0) {
    fs::remove(file, error);
    return;
  }
  ++count_.contents;
  count_.bytes += bytes;
  fs::create_directories(aside_, error);
  // Its time begins now: a crash between these two finds it among the blobs again.
  if (!error) fs::last_write_time(file, fs::file_time_type::clock::now(), error);
  if (!error) fs::rename(file, aside_ / digest.Hex(), error);
  if (error) LogWarning("content ", digest.Short(), " stays where it is: ", error.message());
}

}  // namespace rootstock
