#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <span>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/content/durable_file.h"
#include "coordinator/content/uploads/upload_files.h"
#include "coordinator/content/uploads/upload_store.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

std::span<const uint8_t> AsBytes(std::string_view text) {
  return {reinterpret_cast<const uint8_t*>(text.data()), text.size()};
}

}  // namespace

struct UploadStore::Writer::Open {
  ~Open() {
    if (fd >= 0) close(fd);
  }
  std::string name;
  int fd = -1;
  Sha256 hash;  // of what the part holds
};

UploadStore::Writer::Writer(std::unique_ptr<Lease> lease, fs::path dir)
    : lease_(std::move(lease)), dir_(std::move(dir)), state_(lease_->state()) {}
UploadStore::Writer::~Writer() = default;

// What an earlier writer left is hashed again.
absl::Status UploadStore::Writer::OpenFile(const UploadFile& file) {
  auto open_file = std::make_unique<Open>();
  open_file->name = file.name;
  const fs::path path = PartOf(dir_ / file.name);
  open_file->fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (open_file->fd < 0) return StoreError(path, errno);
  std::vector<char> buffer(1 << 20);
  for (uint64_t done = 0; done < file.received;) {
    const size_t want = std::min<uint64_t>(buffer.size(), file.received - done);
    const ssize_t n = pread(open_file->fd, buffer.data(), want, static_cast<off_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return StoreError(path, n < 0 ? errno : EIO);
    open_file->hash.Update(AsBytes({buffer.data(), static_cast<size_t>(n)}));
    done += static_cast<uint64_t>(n);
  }
  open_ = std::move(open_file);
  return absl::OkStatus();
}

absl::Status UploadStore::Writer::Append(const std::string& name, uint64_t offset,
                                         std::string_view bytes) {
  const auto file = std::find_if(state_.files.begin(), state_.files.end(),
                                 [&](const UploadFile& f) { return f.name == name; });
  if (file == state_.files.end()) {
    return InvalidField(Reason::kInvalidArgument, "file", name, "is not part of this upload");
  }
  if (offset != file->received) {
    return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kInvalidArgument, "offset",
                     absl::StrCat(offset), absl::StrCat(name, " ends at ", file->received));
  }
  if (bytes.size() > file->bytes - file->received) {
    return InvalidField(Reason::kSizeLimit, "file", name,
                        absl::StrCat("more than the ", file->bytes, " bytes that were announced"));
  }
  if (bytes.empty()) return absl::OkStatus();
  if (open_ == nullptr || open_->name != name) RETURN_IF_ERROR(OpenFile(*file));
  RETURN_IF_ERROR(lease_->CheckSpace(name, bytes.size()));
  RETURN_IF_ERROR(lease_->Take(name, bytes.size()));
  const absl::Status written = WriteBytes(*file, bytes);
  lease_->GiveBack(name, offset + bytes.size() - file->received);
  if (!written.ok()) {
    open_.reset();
    // A full disk's last bytes are not an upload's to keep.
    return absl::IsResourceExhausted(written) ? Forget(*file, written) : written;
  }
  return file->received == file->bytes ? Complete(*file) : absl::OkStatus();
}

absl::Status UploadStore::Writer::WriteBytes(UploadFile& file, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n =
        pwrite(open_->fd, bytes.data(), bytes.size(), static_cast<off_t>(file.received));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return StoreError(dir_ / file.name, errno);
    open_->hash.Update(AsBytes(bytes.substr(0, static_cast<size_t>(n))));
    bytes.remove_prefix(static_cast<size_t>(n));
    file.received += static_cast<uint64_t>(n);
  }
  return absl::OkStatus();
}

absl::Status UploadStore::Writer::Complete(UploadFile& file) {
  const std::unique_ptr<Open> part = std::move(open_);
  const Digest got = part->hash.Finish();
  if (got != file.sha256) {
    return Forget(file,
                  MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "file", file.name,
                            absl::StrCat("came as sha256 ", got.Short(), ", announced was ",
                                         file.sha256.Short(), "; send it again")));
  }
  const absl::Status whole = CompletePart(part->fd, dir_ / file.name);
  return whole.ok() ? whole : Forget(file, whole);  // nobody knows what of it is on the disk
}

absl::Status UploadStore::Writer::Forget(UploadFile& file, absl::Status why) {
  std::error_code ignored;
  fs::remove(dir_ / file.name, ignored);
  fs::remove(PartOf(dir_ / file.name), ignored);
  lease_->GiveBack(file.name, std::exchange(file.received, 0));
  return why;
}

}  // namespace rootstock
