// Device memory for kernel tests and benches.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/cuda/types.h"

namespace rootstock::kernels::cuda {

#define ROOTSTOCK_CUDA_OK(call) \
  ASSERT_EQ(cudaSuccess, (call)) << cudaGetErrorString(cudaGetLastError())

// `count` elements in device memory, filled with 0xff bytes (NaN) unless given. *One thread.*
template <typename T>
class DeviceArray {
 public:
  explicit DeviceArray(size_t count) : count_(count) {
    EXPECT_EQ(cudaSuccess, cudaMalloc(reinterpret_cast<void**>(&data_), Bytes()));
    EXPECT_EQ(cudaSuccess, cudaMemset(data_, 0xff, Bytes()));
  }
  explicit DeviceArray(const std::vector<T>& from) : DeviceArray(from.size()) { Set(from); }
  DeviceArray(DeviceArray&& other) noexcept : data_(other.data_), count_(other.count_) {
    other.data_ = nullptr;
  }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  ~DeviceArray() { cudaFree(data_); }

  T* get() const { return data_; }
  size_t size() const { return count_; }
  void Set(const std::vector<T>& from) {
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(data_, from.data(), from.size() * sizeof(T), cudaMemcpyHostToDevice));
  }
  std::vector<T> Get() const {
    std::vector<T> out(count_);
    EXPECT_EQ(cudaSuccess,
              cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost));
    return out;
  }

 private:
  size_t Bytes() const { return (count_ == 0 ? 1 : count_) * sizeof(T); }
  T* data_ = nullptr;
  size_t count_;
};

inline uint16_t Bf16Bits(float x) {
  uint32_t bits;
  std::memcpy(&bits, &x, sizeof(bits));
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

inline float Bf16Value(uint16_t x) {
  const uint32_t bits = uint32_t{x} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}

// Rounds to what `type` can hold.
inline void RoundTo(Type type, std::vector<float>& x) {
  if (type == Type::kF32) return;
  for (float& value : x) value = Bf16Value(Bf16Bits(value));
}

inline std::vector<std::byte> Encode(Type type, const std::vector<float>& x) {
  std::vector<std::byte> out(x.size() * SizeOf(type));
  for (size_t i = 0; i < x.size(); ++i) {
    if (type == Type::kF32) {
      std::memcpy(&out[i * 4], &x[i], 4);
    } else {
      const uint16_t bits = Bf16Bits(x[i]);
      std::memcpy(&out[i * 2], &bits, 2);
    }
  }
  return out;
}

inline std::vector<float> Decode(Type type, const std::vector<std::byte>& x) {
  std::vector<float> out(x.size() / SizeOf(type));
  for (size_t i = 0; i < out.size(); ++i) {
    if (type == Type::kF32) {
      std::memcpy(&out[i], &x[i * 4], 4);
    } else {
      uint16_t bits;
      std::memcpy(&bits, &x[i * 2], 2);
      out[i] = Bf16Value(bits);
    }
  }
  return out;
}

// ‖got - want‖ / ‖want‖; infinite where something is not finite or was not written.
inline double RelativeError(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0;
  double norm = 0;
  if (got.size() != want.size()) return INFINITY;
  for (size_t i = 0; i < got.size(); ++i) {
    const double d = double{got[i]} - want[i];
    difference += d * d;
    norm += double{want[i]} * want[i];
  }
  const double error = std::sqrt(difference / (norm == 0 ? 1 : norm));
  return std::isfinite(error) ? error : INFINITY;
}

}  // namespace rootstock::kernels::cuda
