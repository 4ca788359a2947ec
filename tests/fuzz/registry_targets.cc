// What the registry and the uploads read back from the disk.
#include <algorithm>
#include <optional>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/adapters/alias.h"
#include "coordinator/adapters/registry_codec.h"
#include "coordinator/content/uploads/upload_files.h"
#include "tests/fuzz/fuzz_target.h"

namespace rootstock {
namespace {

constexpr char kRequestId[] = "a request";
constexpr size_t kSpecBytes = 16;  // of a module

absl::StatusOr<std::string> RunAlias(const std::string& input) {
  ASSIGN_OR_RETURN(const std::vector<AliasTarget> targets, DecodeAliasTargets(input));
  Require(EncodeAliasTargets(targets) == input, "an alias has two spellings");
  if (targets.empty()) return "removed";
  Require(CheckAliasTargets(targets).ok(), "targets that no alias has are taken");
  Require(ChooseAliasTarget("prod", 1, targets, kRequestId) < targets.size(),
          "a target that is none was chosen");
  return absl::StrCat("targets ", targets.size());
}

// A digest, then modules.
absl::StatusOr<std::string> RunTables(const std::string& input) {
  const size_t digest_bytes = std::min(input.size(), sizeof(Digest::bytes));
  const std::string packed = input.substr(digest_bytes);
  ASSIGN_OR_RETURN(const Digest digest, ToDigest(input.substr(0, digest_bytes)));
  ASSIGN_OR_RETURN(const LoraSpec spec, UnpackSpec(packed));
  Require(std::string(DigestBytes(digest)) + PackSpec(spec) == input, "a row has two spellings");
  Require(spec.modules.size() * kSpecBytes == packed.size(), "modules were lost");
  for (const LoraModule& m : spec.modules) {
    Require(m.layer >= 0 && m.lora_rank >= 1, "a module is absurd");
  }
  return absl::StrCat("modules ", std::min<size_t>(spec.modules.size(), 20));
}

absl::StatusOr<std::string> RunManifest(const std::string& input) {
  const std::optional<UploadManifest> manifest = ParseManifest(input);
  if (!manifest) {
    return MakeError(absl::StatusCode::kDataLoss, Reason::kIoError, "upload", "", "no manifest");
  }
  const std::string text = FormatManifest(*manifest);
  const std::optional<UploadManifest> again = ParseManifest(text);
  Require(again && FormatManifest(*again) == text, "what was read is not what is written");
  for (const UploadFile& file : manifest->files) Require(file.bytes > 0, "a file of no bytes");
  return absl::StrCat("files ", std::min<size_t>(manifest->files.size(), 20), " of ",
                      std::min<size_t>(manifest->tenant.size(), 20));
}

std::string Manifest(uint64_t bytes) {
  return FormatManifest({.tenant = "default",
                         .files = {{"adapter_config.json", bytes, Sha256Of("a")},
                                   {"adapter_model.safetensors", bytes * 1000, Sha256Of("b")}}});
}

}  // namespace

FuzzTarget AliasesTarget() {
  return {.name = "aliases",
          .seeds = {"", "pirate@2=1", "pirate@2=9,pirate@3=1", "a.b-c_d@4294967295=1000000,x@1=7"},
          .words = {"@", "=", ",", "@1", "=1", "=0", "pirate@3=1,", " ", "+", "-", "=1000001", "@0",
                    "@01", "4294967296", "\xff"},
          .run = RunAlias};
}

FuzzTarget TablesTarget() {
  const std::string digest(DigestBytes(Sha256Of("a")));
  const LoraSpec one = {{{0, Module::kQ, 8, 2.0f}}};
  const LoraSpec three = {
      {{0, Module::kQ, 8, 2.0f}, {0, Module::kV, 4, 0.5f}, {31, Module::kDown, 256, 1e-3f}}};
  return {.name = "tables",
          .seeds = {digest, digest + PackSpec(one), digest + PackSpec(three)},
          .words = {PackSpec(one), digest, std::string(4, '\0'), std::string(4, '\xff'),
                    std::string("\0\0\x80\x7f", 4), std::string("\0\0\xc0\x7f", 4)},
          .run = RunTables};
}

FuzzTarget ManifestTarget() {
  return {.name = "manifest",
          .seeds = {Manifest(1), Manifest(uint64_t{1} << 40), R"({"tenant":"","files":[]})"},
          .words = {"\"",          "[",
                    "]",           "{",
                    "}",           ",",
                    ":",           "null",
                    "\"tenant\":", "\"files\":",
                    "\"name\":",   "\"bytes\":",
                    "\"sha256\":", Sha256Of("c").Hex(),
                    "-1",          "1e3",
                    "0",           "\\u0000",
                    "\\ud800",     "\xff",
                    "../"},
          .run = RunManifest};
}

}  // namespace rootstock
