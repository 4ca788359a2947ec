#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>

#include "common/lora/hostile_artefacts.h"

namespace rootstock {
namespace {

namespace fs = std::filesystem;

void Sparse(const Artefact& a, uint64_t bytes) {
  ASSERT_EQ(truncate((a.dir.path() / kWeights).c_str(), static_cast<off_t>(bytes)), 0);
}

}  // namespace

std::vector<Hostile> HostileFiles() {
  return {
      {"NoTensors", Reason::kNothingAttached, [](auto& a) { a.tensors.clear(); }},
      {"NoConfig", Reason::kConfigInvalid,
       [](auto& a) {
         a.dir.Write(kWeights, a.File());
         a.write = false;
       }},
      {"NoWeights", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         a.write = false;
       }},
      {"PickleByName", Reason::kPickle,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         a.dir.Write("adapter_model.bin", a.File());
         a.write = false;
       }},
      {"PickleByOtherName", Reason::kPickle,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         a.dir.Write("pytorch_lora.pt", "x");
         a.write = false;
       }},
      {"PickleByMagicZip", Reason::kPickle,
       [](auto& a) { a.Raw(std::string("PK\3\4\x14\0\0\0\0\0", 10)); }},
      {"PickleByMagicProtocol2", Reason::kPickle,
       [](auto& a) { a.Raw(std::string("\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9 j", 11)); }},
      {"PickleByMagicProtocol4", Reason::kPickle,
       [](auto& a) { a.Raw(std::string("\x80\x04\x95\x1f\0\0\0\0\0\0\0", 11)); }},
      {"WeightsOverTheCap", Reason::kSizeLimit,
       [](auto& a) {
         a.Raw(a.File());
         Sparse(a, uint64_t{5} << 30);
       }},
      {"GigabytesPromised", Reason::kShapeMismatch,
       [](auto& a) {
         const std::string name = PeftPath(0, Module::kQ) + ".lora_";
         const std::string gig = "\"dtype\":\"F32\",\"shape\":[4194304,64],\"data_offsets\":";
         a.Raw(WithLength("{\"" + name + "A.weight\":{" + gig + "[0,1073741824]},\"" + name +
                              "B.weight\":{" + gig + "[1073741824,2147483648]}}",
                          ""));
         Sparse(a, fs::file_size(a.dir.path() / kWeights) + (uint64_t{2} << 30));
       }},
  };
}

std::vector<Hostile> HostileLinks() {
  return {
      {"WeightsLinkOut", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         fs::create_symlink("/etc/passwd", a.dir.path() / kWeights);
         a.write = false;
       }},
      {"ConfigLinkOut", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kWeights, a.File());
         fs::create_symlink("/etc/passwd", a.dir.path() / kConfig);
         a.write = false;
       }},
      {"WeightsLinkLoop", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         fs::create_symlink(kWeights, a.dir.path() / kWeights);
         a.write = false;
       }},
      {"WeightsArePipe", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         ASSERT_EQ(mkfifo((a.dir.path() / kWeights).c_str(), 0600), 0);
         a.write = false;
       }},
      {"ConfigIsPipe", Reason::kPathInvalid,
       [](auto& a) {
         ASSERT_EQ(mkfifo((a.dir.path() / kConfig).c_str(), 0600), 0);
         a.write = false;
       }},
      {"WeightsAreDirectory", Reason::kPathInvalid,
       [](auto& a) {
         a.dir.Write(kConfig, a.config);
         fs::create_directory(a.dir.path() / kWeights);
         a.write = false;
       }},
  };
}

}  // namespace rootstock
