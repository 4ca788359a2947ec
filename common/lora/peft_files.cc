#include "common/lora/peft_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/lora/peft_config.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

constexpr std::array<const char*, 6> kPickleSuffixes = {".bin",  ".pt",  ".pth",
                                                        ".ckpt", ".pkl", ".pickle"};
constexpr int kMaxEntries = 4096;  // looked at for the sake of a better message

absl::Status PathInvalid(absl::StatusCode code, const std::string& path, const std::string& text) {
  return MakeError(code, Reason::kPathInvalid, "path", path, text);
}

bool IsInside(const fs::path& file, const fs::path& dir) {
  const auto [end, unused] = std::mismatch(dir.begin(), dir.end(), file.begin(), file.end());
  return end == dir.end();
}

// Name of a pickled weights file in DIR; empty for none. adapter_model.* comes first.
std::string FindPickle(const fs::path& dir) {
  std::error_code error;
  std::string found;
  int seen = 0;
  for (fs::directory_iterator it(dir, error), end; !error && it != end && seen < kMaxEntries;
       it.increment(error), ++seen) {
    const std::string name = it->path().filename().string();
    const std::string suffix = it->path().extension().string();
    if (std::find(kPickleSuffixes.begin(), kPickleSuffixes.end(), suffix) ==
        kPickleSuffixes.end()) {
      continue;
    }
    if (name.starts_with("adapter_model")) return name;
    found = name;
  }
  return found;
}

}  // namespace

SteadyFile::SteadyFile(int fd, uint64_t size, std::string name)
    : fd_(fd), size_(size), name_(std::move(name)) {}
SteadyFile::SteadyFile(SteadyFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), name_(std::move(other.name_)) {}
SteadyFile::~SteadyFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SteadyFile> SteadyFile::Open(const fs::path& dir, const std::string& name) {
  std::error_code error;
  const fs::path root = fs::canonical(dir, error);
  if (error) return PathInvalid(absl::StatusCode::kNotFound, dir.string(), error.message());
  const fs::path real = fs::canonical(dir / name, error);
  if (error) {
    return PathInvalid(absl::StatusCode::kNotFound, (dir / name).string(), error.message());
  }
  if (!IsInside(real, root)) {
    return PathInvalid(absl::StatusCode::kInvalidArgument, (dir / name).string(),
                       "is a link out of its directory");
  }
  // O_NONBLOCK: opening a pipe must not wait for its writer.
  const int fd = open(real.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0) {
    return PathInvalid(absl::StatusCode::kInvalidArgument, (dir / name).string(),
                       std::strerror(errno));
  }
  struct stat st{};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return PathInvalid(absl::StatusCode::kInvalidArgument, (dir / name).string(),
                       "is not a regular file");
  }
  return SteadyFile(fd, static_cast<uint64_t>(st.st_size), name);
}

absl::Status SteadyFile::ReadAt(uint64_t offset, std::span<uint8_t> out) const {
  size_t done = 0;
  while (done < out.size()) {
    const ssize_t n =
        pread(fd_, out.data() + done, out.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, name_, "",
                       std::strerror(errno));
    }
    if (n == 0) {
      return InvalidField(Reason::kTruncated, name_, "",
                          absl::StrCat("truncated: ends at byte ", offset + done));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

absl::Status CheckPeftDirectory(const fs::path& dir) {
  std::error_code error;
  const auto status = fs::status(dir, error);
  if (fs::is_directory(status)) return absl::OkStatus();
  return PathInvalid(
      fs::exists(status) ? absl::StatusCode::kInvalidArgument : absl::StatusCode::kNotFound,
      dir.string(), "is no directory");
}

absl::StatusOr<std::string> ReadPeftConfigFile(const fs::path& dir) {
  auto file = SteadyFile::Open(dir, kPeftConfigFile);
  if (absl::IsNotFound(file.status())) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kConfigInvalid, kPeftConfigFile, "",
                     absl::StrCat("no such file in ", dir.string()));
  }
  RETURN_IF_ERROR(file.status());
  if (file->size() > kMaxPeftConfigBytes) {
    return InvalidField(
        Reason::kSizeLimit, kPeftConfigFile, "",
        absl::StrCat("has ", file->size(), " bytes, at most ", kMaxPeftConfigBytes, " are read"));
  }
  std::string text(file->size(), '\0');
  RETURN_IF_ERROR(file->ReadAt(0, {reinterpret_cast<uint8_t*>(text.data()), text.size()}));
  return text;
}

absl::StatusOr<SteadyFile> OpenPeftWeights(const fs::path& dir) {
  auto file = SteadyFile::Open(dir, kPeftWeightsFile);
  if (!absl::IsNotFound(file.status())) return file;
  if (const std::string pickle = FindPickle(dir); !pickle.empty()) {
    return InvalidField(Reason::kPickle, "path", pickle,
                        absl::StrCat("pickled weights can run code and are never read; save as ",
                                     kPeftWeightsFile));
  }
  return MakeError(absl::StatusCode::kNotFound, Reason::kPathInvalid, kPeftWeightsFile, "",
                   absl::StrCat("no such file in ", dir.string()));
}

bool LooksPickled(std::span<const uint8_t> p) {
  if (p.size() < 4) return false;
  const bool zip = p[0] == 'P' && p[1] == 'K' && p[2] == 3 && p[3] == 4;
  return zip || (p[0] == 0x80 && p[1] >= 2 && p[1] <= 5);
}

}  // namespace rootstock
