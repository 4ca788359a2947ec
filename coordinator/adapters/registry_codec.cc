#include "coordinator/adapters/registry_codec.h"

#include <cmath>
#include <cstring>

#include "common/base/status.h"

namespace rootstock {
namespace {

// layer, module, lora_rank, scale: 16 bytes each.
struct PackedModule {
  int32_t layer, module, lora_rank;
  float scale;
};
static_assert(sizeof(PackedModule) == 16);

}  // namespace

absl::Status CorruptRegistry(const std::string& what) {
  return MakeError(absl::StatusCode::kDataLoss, Reason::kIoError, "registry", "", what);
}

std::string_view DigestBytes(const Digest& digest) {
  return {reinterpret_cast<const char*>(digest.bytes.data()), digest.bytes.size()};
}

absl::StatusOr<Digest> ToDigest(const std::string& bytes) {
  Digest d;
  if (bytes.size() != d.bytes.size()) return CorruptRegistry("a digest of another length");
  std::memcpy(d.bytes.data(), bytes.data(), bytes.size());
  return d;
}

std::string PackSpec(const LoraSpec& spec) {
  std::string out;
  for (const LoraModule& m : spec.modules) {
    const PackedModule p{m.layer, static_cast<int32_t>(m.module), m.lora_rank, m.scale};
    out.append(reinterpret_cast<const char*>(&p), sizeof(p));
  }
  return out;
}

absl::StatusOr<LoraSpec> UnpackSpec(const std::string& bytes) {
  if (bytes.size() % sizeof(PackedModule) != 0) {
    return CorruptRegistry("modules of another length");
  }
  LoraSpec spec;
  spec.modules.reserve(bytes.size() / sizeof(PackedModule));
  for (size_t at = 0; at < bytes.size(); at += sizeof(PackedModule)) {
    PackedModule p;
    std::memcpy(&p, bytes.data() + at, sizeof(p));
    if (p.module < 0 || p.module >= static_cast<int32_t>(kAllModules.size())) {
      return CorruptRegistry("an unknown module");
    }
    if (p.layer < 0 || p.lora_rank < 1 || !std::isfinite(p.scale)) {
      return CorruptRegistry("a module that no adapter has");
    }
    spec.modules.push_back({p.layer, static_cast<Module>(p.module), p.lora_rank, p.scale});
  }
  return spec;
}

}  // namespace rootstock
