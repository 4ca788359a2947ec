// Reading parts of a mapped file so that the disk gives those parts and hardly more. Internal to
// this folder.
#pragma once

#include <cstddef>
#include <cstdint>

namespace rootstock {

// `rows` pieces of `width` bytes, one every `stride` bytes (≥ width), in a mapped file.
struct MappedRows {
  const uint8_t* data = nullptr;
  size_t rows = 0;
  size_t width = 0;
  size_t stride = 0;
};

// Starts reading the pages that `part` lies on and does not wait. Of a FileUse::kParts mapping only
// those come from the disk. Advice: a failure costs time only.
void Fetch(const MappedRows& part);

}  // namespace rootstock
