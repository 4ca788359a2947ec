// Safetensors files on disk, mapped: only touched pages are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/safetensors/header.h"

namespace rootstock {

// One tensor's place in memory that its file (or the caller's bytes) owns.
struct TensorView {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::span<const uint8_t> bytes;  // row-major; aligned to nothing
};

// How much of a mapped file its reader will touch. kParts: the kernel reads no page around a
// touched one, so a reader asks (MADV_WILLNEED) for what it will read, or waits for each page.
enum class FileUse { kWhole, kParts };

// A checked safetensors file. Views live as long as any copy of it. Immutable, thread-safe.
class SafetensorsFile {
 public:
  // Maps PATH read-only. Not for files that others may truncate meanwhile. kNotFound/io_error, and
  // the refusals of header.h naming the file.
  static absl::StatusOr<SafetensorsFile> Open(const std::filesystem::path& path,
                                              const SafetensorsLimits& limits,
                                              FileUse use = FileUse::kWhole);
  // Over bytes that outlive it; errors call them `name`.
  static absl::StatusOr<SafetensorsFile> Parse(std::span<const uint8_t> file,
                                               const std::string& name,
                                               const SafetensorsLimits& limits);

  const std::vector<TensorView>& tensors() const { return tensors_; }  // by name
  const TensorView* Find(const std::string& name) const;
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  // The JSON header's own bytes.
  std::span<const uint8_t> header() const { return header_; }

 private:
  std::vector<TensorView> tensors_;
  std::map<std::string, std::string> metadata_;
  std::span<const uint8_t> header_;
  std::shared_ptr<const void> mapping_;
};

// A model directory: model.safetensors, or the shards that model.safetensors.index.json names.
// Immutable, thread-safe.
class ShardedSafetensors {
 public:
  // kNotFound/model_invalid when neither is there; kInvalidArgument when an index entry or its
  // shard is missing, naming it.
  static absl::StatusOr<ShardedSafetensors> Open(
      const std::filesystem::path& model_dir, FileUse use,
      const SafetensorsLimits& limits = kModelFileLimits);

  const TensorView* Find(const std::string& name) const;
  // Every tensor, by name.
  const std::map<std::string, const TensorView*>& tensors() const { return by_name_; }

 private:
  std::vector<std::unique_ptr<const SafetensorsFile>> files_;
  std::map<std::string, const TensorView*> by_name_;
};

// One file's bytes from tensors: names sorted, data in that order, header padded so that the data
// begins on 64 bytes. Equal input gives equal bytes. Tensor names are unique.
std::string EncodeSafetensors(std::vector<TensorView> tensors,
                              const std::map<std::string, std::string>& metadata);

}  // namespace rootstock
