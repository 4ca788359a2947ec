#include "worker/weights/mapped_rows.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>

namespace rootstock {
namespace {

// Of one request the kernel reads no more than the device's readahead, by default this much.
constexpr size_t kRequestBytes = 128 << 10;

size_t PageBytes() { return static_cast<size_t>(sysconf(_SC_PAGESIZE)); }

// From the page that `data` lies on.
void FetchPiece(const uint8_t* data, size_t bytes) {
  const size_t before = reinterpret_cast<uintptr_t>(data) % PageBytes();
  uint8_t* at = const_cast<uint8_t*>(data) - before;
  for (size_t left = before + bytes; left > 0;) {
    const size_t n = std::min(left, kRequestBytes);
    madvise(at, n, MADV_WILLNEED);
    at += n;
    left -= n;
  }
}

}  // namespace

void Fetch(const MappedRows& part) {
  if (part.rows == 0) return;
  // Gaps that hold no page of their own save nothing: one piece.
  if (part.stride - part.width < PageBytes()) {
    return FetchPiece(part.data, (part.rows - 1) * part.stride + part.width);
  }
  for (size_t row = 0; row < part.rows; ++row) {
    FetchPiece(part.data + row * part.stride, part.width);
  }
}

}  // namespace rootstock
