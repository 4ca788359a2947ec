#include "common/safetensors/safetensors.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

constexpr size_t kDataAlignment = 64;

absl::Status IoError(const std::filesystem::path& path, int error) {
  return MakeError(error == ENOENT ? absl::StatusCode::kNotFound : absl::StatusCode::kUnavailable,
                   Reason::kIoError, "path", path.string(), std::strerror(error));
}

// Whole-file read-only mapping. Immutable, thread-safe.
class Mapping {
 public:
  static absl::StatusOr<std::shared_ptr<const Mapping>> Open(const std::filesystem::path& path,
                                                             FileUse use) {
    const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return IoError(path, errno);
    struct stat st{};
    const int rc = fstat(fd, &st);
    if (rc != 0 || !S_ISREG(st.st_mode)) {
      close(fd);
      return rc != 0 ? IoError(path, errno)
                     : InvalidField(Reason::kPathInvalid, "path", path.string(),
                                    "is not a regular file");
    }
    const size_t size = static_cast<size_t>(st.st_size);
    void* at = size == 0 ? nullptr : mmap(nullptr, size, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    close(fd);
    if (at == MAP_FAILED) return IoError(path, error);
    if (use == FileUse::kParts && size > 0) madvise(at, size, MADV_RANDOM);
    return std::shared_ptr<const Mapping>(new Mapping(static_cast<const uint8_t*>(at), size));
  }
  ~Mapping() {
    if (at_ != nullptr) munmap(const_cast<uint8_t*>(at_), size_);
  }
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<const uint8_t> bytes() const { return {at_, size_}; }

 private:
  Mapping(const uint8_t* at, size_t size) : at_(at), size_(size) {}
  const uint8_t* at_;
  size_t size_;
};

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::filesystem::path& path,
                                                      const SafetensorsLimits& limits,
                                                      FileUse use) {
  ASSIGN_OR_RETURN(const auto mapping, Mapping::Open(path, use));
  ASSIGN_OR_RETURN(SafetensorsFile out, Parse(mapping->bytes(), path.filename().string(), limits));
  out.mapping_ = mapping;
  return out;
}

absl::StatusOr<SafetensorsFile> SafetensorsFile::Parse(std::span<const uint8_t> file,
                                                       const std::string& name,
                                                       const SafetensorsLimits& limits) {
  const auto prefix = file.first(std::min<size_t>(file.size(), kSafetensorsPrefixBytes));
  ASSIGN_OR_RETURN(const uint64_t header_bytes,
                   SafetensorsHeaderBytes(prefix, file.size(), name, limits));
  SafetensorsFile out;
  out.header_ = file.subspan(kSafetensorsPrefixBytes, header_bytes);
  const auto data = file.subspan(kSafetensorsPrefixBytes + header_bytes);
  ASSIGN_OR_RETURN(SafetensorsHeader header,
                   ParseSafetensorsHeader(out.header_, data.size(), name, limits));
  out.metadata_ = std::move(header.metadata);
  out.tensors_.reserve(header.tensors.size());
  for (TensorInfo& t : header.tensors) {
    out.tensors_.push_back({.name = std::move(t.name),
                            .dtype = t.dtype,
                            .shape = std::move(t.shape),
                            .bytes = data.subspan(t.begin, t.bytes())});
  }
  return out;
}

const TensorView* SafetensorsFile::Find(const std::string& name) const {
  const auto it =
      std::lower_bound(tensors_.begin(), tensors_.end(), name,
                       [](const TensorView& t, const std::string& n) { return t.name < n; });
  return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

const TensorView* ShardedSafetensors::Find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : it->second;
}

std::string EncodeSafetensors(std::vector<TensorView> tensors,
                              const std::map<std::string, std::string>& metadata) {
  std::sort(tensors.begin(), tensors.end(),
            [](const TensorView& a, const TensorView& b) { return a.name < b.name; });
  nlohmann::json header = nlohmann::json::object();  // keys come out sorted
  if (!metadata.empty()) header["__metadata__"] = metadata;
  uint64_t at = 0;
  for (const TensorView& t : tensors) {
    const char* dtype = t.dtype == DType::kF32 ? "F32" : t.dtype == DType::kF16 ? "F16" : "BF16";
    header[t.name] = {
        {"dtype", dtype}, {"shape", t.shape}, {"data_offsets", {at, at + t.bytes.size()}}};
    at += t.bytes.size();
  }
  std::string json = header.dump();
  const size_t unpadded = kSafetensorsPrefixBytes + json.size();
  json.append((kDataAlignment - unpadded % kDataAlignment) % kDataAlignment, ' ');
  std::string out;
  out.reserve(kSafetensorsPrefixBytes + json.size() + at);
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(json.size() >> (8 * i) & 0xff));
  out += json;
  for (const TensorView& t : tensors) {
    out.append(reinterpret_cast<const char*>(t.bytes.data()), t.bytes.size());
  }
  return out;
}

}  // namespace rootstock
