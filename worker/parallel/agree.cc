#include "worker/parallel/agree.h"

#include <cstring>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace rootstock {
namespace {

void Put(const std::string& text, std::string& out) {
  const uint64_t size = text.size();
  out.append(reinterpret_cast<const char*>(&size), sizeof(size));
  out += text;
}

std::string Take(const std::string& from, size_t& at) {
  uint64_t size = 0;
  std::memcpy(&size, from.data() + at, sizeof(size));
  at += sizeof(size);
  std::string out = from.substr(at, size);
  at += size;
  return out;
}

}  // namespace

std::string PackStatus(const absl::Status& status) {
  std::string out;
  Put(absl::StrCat(static_cast<int>(status.code())), out);
  Put(std::string(status.message()), out);
  status.ForEachPayload([&out](absl::string_view url, const absl::Cord& payload) {
    Put(std::string(url), out);
    Put(std::string(payload), out);
  });
  return out;
}

absl::Status UnpackStatus(const std::string& bytes) {
  size_t at = 0;
  const std::string code = Take(bytes, at);
  const std::string message = Take(bytes, at);
  absl::Status out(static_cast<absl::StatusCode>(std::stoi(code)), message);
  while (at < bytes.size()) {
    const std::string url = Take(bytes, at);
    out.SetPayload(url, absl::Cord(Take(bytes, at)));
  }
  return out;
}

absl::Status FailedOn(int rank, const absl::Status& status) {
  return Annotate(status, absl::StrCat("tp_rank ", rank));
}

absl::Status AgreeOver(MPI_Comm comm, const absl::Status& mine) {
  int rank = 0, size = 1, failed = 0;
  MPI_Comm_rank(comm, &rank);
  MPI_Comm_size(comm, &size);
  const int of_mine = mine.ok() ? size : rank;
  MPI_Allreduce(&of_mine, &failed, 1, MPI_INT, MPI_MIN, comm);
  if (failed == size) return absl::OkStatus();
  std::string text = rank == failed ? PackStatus(mine) : "";
  uint64_t bytes = text.size();
  MPI_Bcast(&bytes, 1, MPI_UINT64_T, failed, comm);
  text.resize(bytes);
  MPI_Bcast(text.data(), static_cast<int>(bytes), MPI_BYTE, failed, comm);
  return FailedOn(failed, UnpackStatus(text));
}

}  // namespace rootstock
