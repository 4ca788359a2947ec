// What operators, clients and machines do to a coordinator, in random order.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "coordinator/content/uploads/upload_store.h"
#include "coordinator/engine/testing/world.h"

namespace rootstock {

// One life of a coordinator with its registry, its uploads and two groups. After every operation,
// and after everything that happens between two, the pages of both groups are accounted for. Test
// thread only.
class RandomLife {
 public:
  enum What {
    kRegister,
    kUpload,
    kSwitch,
    kPin,
    kUnload,
    kEvict,  // a request for an adapter that is not on the device, so that others must go
    kRequest,
    kCancel,
    kWorkerRestart,
    kCoordinatorRestart,
    kKinds
  };
  using Counts = std::array<uint64_t, kKinds>;
  static const char* NameOf(What what);

  explicit RandomLife(uint32_t seed);
  // Until `operations` were carried out, with turns of groups and threads between them; those that
  // find nothing to do do not count. Stops at the first failure.
  void Run(uint64_t operations);
  // Settles, then looks at each request, and that nothing is left of what is unloaded.
  void FinishAndCheck();

  const Counts& done() const { return done_; }
  int completed() const { return completed_; }
  World& world() { return world_; }

 private:
  struct Asked {
    World::Sent sent;
    bool cancelled = false;
    bool cut = false;       // by a restart of the coordinator
    std::set<int> stopped;  // samples in which a stop string was found
  };
  struct Uploading {
    std::string id, name, texts[2];
    size_t received[2] = {};
  };

  bool Do(What what);
  void Turn();
  void CheckPages();

  bool Register();
  bool Upload();
  bool StartUpload();
  void WriteUpload(Uploading& upload);
  void FinishUpload();
  void OpenUploads();
  bool SwitchAlias();
  bool Unload();
  void UnloadNow(const Digest& digest);
  bool Pin();
  bool Evict();
  bool Request();
  bool Send(GenerateRequest request);
  bool Cancel();
  bool RestartWorker();
  bool RestartCoordinator();

  void StopSample();
  void CompleteOther();
  void FailNext();
  void Check(const Asked& a);
  void CheckTokens(const Asked& a);
  void ExpectAllFreed();
  FakeGroup& Group() { return *world_.groups[random_() % 2 == 0 ? "g1" : "g2"]; }
  const std::string& AnyName() { return names_[random_() % names_.size()]; }
  std::optional<Digest> AnyDigest();
  Asked* Pick();

  std::mt19937 random_;
  World world_;
  std::vector<std::string> names_;  // adapters and an alias, whether they are there or not
  std::set<Digest> contents_;       // that ever had a name
  std::vector<AdapterPin> pins_;
  std::unique_ptr<UploadStore> uploads_;
  std::optional<Uploading> uploading_;
  uint64_t next_upload_ = 0;
  std::vector<Asked> asked_;
  Counts done_{};
  int completed_ = 0;
  int unloads_ = 0, unloaded_ = 0;
};

}  // namespace rootstock
