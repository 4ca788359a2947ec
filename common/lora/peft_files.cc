#include "common/lora/peft_files.h"

#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <climits>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
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

// Name of a pickled weights file in DIR; empty for none. adapter_model.* comes first.
std::string FindPickle(const PeftDirectory& dir) {
  const int fd = openat(dir.fd(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  DIR* const entries = fd < 0 ? nullptr : fdopendir(fd);
  if (entries == nullptr) {
    if (fd >= 0) close(fd);
    return "";
  }
  const absl::Cleanup closing = [entries] { closedir(entries); };
  std::string found;
  for (int seen = 0; seen < kMaxEntries; ++seen) {
    const dirent* const entry = readdir(entries);
    if (entry == nullptr) break;
    const std::string name = entry->d_name;
    const std::string suffix = fs::path(name).extension().string();
    if (std::find(kPickleSuffixes.begin(), kPickleSuffixes.end(), suffix) ==
        kPickleSuffixes.end()) {
      continue;
    }
    if (name.starts_with("adapter_model")) return name;
    found = name;
  }
  return found;
}

// What the link NAME of DIR points to; empty for no link, or none that can be read.
std::string TargetOf(const PeftDirectory& dir, const std::string& name) {
  std::array<char, NAME_MAX + 1> target;
  const ssize_t bytes = readlinkat(dir.fd(), name.c_str(), target.data(), target.size());
  return bytes > 0 ? std::string(target.data(), static_cast<size_t>(bytes)) : "";
}

// O_NONBLOCK: opening a pipe must not wait for its writer.
int OpenNoLink(const PeftDirectory& dir, const std::string& name) {
  return openat(dir.fd(), name.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
}

}  // namespace

PeftDirectory::PeftDirectory(PeftDirectory&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
PeftDirectory::~PeftDirectory() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<PeftDirectory> PeftDirectory::Open(const fs::path& dir) {
  const int fd = open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) return PeftDirectory(fd);
  const bool absent = errno == ENOENT;
  return PathInvalid(absent ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument,
                     dir.filename().string(),
                     errno == ENOTDIR ? "is no directory" : std::strerror(errno));
}

SteadyFile::SteadyFile(int fd, uint64_t size, std::string name)
    : fd_(fd), size_(size), name_(std::move(name)) {}
SteadyFile::SteadyFile(SteadyFile&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), size_(other.size_), name_(std::move(other.name_)) {}
SteadyFile::~SteadyFile() {
  if (fd_ >= 0) close(fd_);
}

absl::StatusOr<SteadyFile> SteadyFile::Open(const PeftDirectory& dir, const std::string& name) {
  int fd = OpenNoLink(dir, name);
  if (fd < 0 && errno == ELOOP) {
    const std::string target = TargetOf(dir, name);
    if (target.empty() || target.find('/') != std::string::npos) {
      return PathInvalid(absl::StatusCode::kInvalidArgument, name,
                         "is a link out of its directory");
    }
    fd = OpenNoLink(dir, target);
  }
  if (fd < 0) {
    return PathInvalid(
        errno == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kInvalidArgument, name,
        std::strerror(errno));
  }
  struct stat st{};
  if (fstat(fd, &st) != 0 || !S_ISREG(st.st_mode)) {
    close(fd);
    return PathInvalid(absl::StatusCode::kInvalidArgument, name, "is not a regular file");
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

absl::StatusOr<std::string> ReadPeftConfigFile(const PeftDirectory& dir) {
  auto file = SteadyFile::Open(dir, kPeftConfigFile);
  if (absl::IsNotFound(file.status())) {
    return MakeError(absl::StatusCode::kNotFound, Reason::kConfigInvalid, kPeftConfigFile, "",
                     "no such file in the directory");
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

absl::StatusOr<SteadyFile> OpenPeftWeights(const PeftDirectory& dir) {
  auto file = SteadyFile::Open(dir, kPeftWeightsFile);
  if (!absl::IsNotFound(file.status())) return file;
  if (const std::string pickle = FindPickle(dir); !pickle.empty()) {
    return InvalidField(Reason::kPickle, "path", pickle,
                        absl::StrCat("pickled weights can run code and are never read; save as ",
                                     kPeftWeightsFile));
  }
  return MakeError(absl::StatusCode::kNotFound, Reason::kPathInvalid, kPeftWeightsFile, "",
                   "no such file in the directory");
}

bool LooksPickled(std::span<const uint8_t> p) {
  if (p.size() < 4) return false;
  const bool zip = p[0] == 'P' && p[1] == 'K' && p[2] == 3 && p[3] == 4;
  return zip || (p[0] == 0x80 && p[1] >= 2 && p[1] <= 5);
}

}  // namespace rootstock
