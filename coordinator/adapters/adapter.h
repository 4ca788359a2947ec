// What the rest of the coordinator knows of an adapter.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/base/digest.h"
#include "common/lora/lora_spec.h"

namespace rootstock {

// Content, whatever its names are. Immutable.
struct AdapterContent {
  Digest digest;  // sha256 of the canonical bytes
  LoraSpec spec;
  uint64_t blob_bytes = 0;
};

// Keeps the content's blob while anything in flight uses it, also after its last name went.
// Thread-safe like any shared_ptr to const.
using AdapterHandle = std::shared_ptr<const AdapterContent>;

// A PEFT directory, checked and read.
struct LoadedAdapter {
  Digest digest;
  LoraSpec spec;
  std::string receipt_json;  // what follows from the content alone
  std::string canonical;     // the blob: canonical bytes that `digest` is of
  // What only this directory's config said: equal content may say other.
  std::string config_json = "{}";
  // Held while `canonical` is: what bounds the memory of loads.
  std::shared_ptr<const void> memory = nullptr;
};
// Refusals carry their Reason. Called from any thread, several at once.
using AdapterLoader =
    std::function<absl::StatusOr<LoadedAdapter>(const std::filesystem::path& directory)>;

// A name's life. A registration that fails leaves nothing: not even a failed name.
enum class AdapterState {
  kStaged,   // being read and checked; nobody can use the name
  kActive,   // acknowledged, durable
  kRetired,  // name gone, requests in flight still use the content
  kFailed,   // its stored blob was found missing or cut at start: registering again heals it
};
const char* AdapterStateName(AdapterState state);
// The only legal moves; nothing else changes a state.
bool MayMove(AdapterState from, AdapterState to);

}  // namespace rootstock
