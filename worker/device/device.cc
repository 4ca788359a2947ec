#include "worker/device/device.h"

#include <utility>

namespace rootstock {

DeviceBuffer& DeviceBuffer::operator=(DeviceBuffer&& other) noexcept {
  if (this != &other) {
    Reset();
    data_ = std::exchange(other.data_, nullptr);
    bytes_ = std::exchange(other.bytes_, 0);
    free_ = other.free_;
  }
  return *this;
}

void DeviceBuffer::Reset() {
  if (data_ != nullptr) free_(data_, bytes_);
  data_ = nullptr;
}

}  // namespace rootstock
