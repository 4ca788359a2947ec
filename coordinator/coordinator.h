// The coordinator as a whole: every part, wired.
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "coordinator/options.h"

namespace rootstock {

// Serves from Start until Drain or destruction. Start and Drain on the main thread only.
class Coordinator {
 public:
  // `options` passed CheckOptions. Errors name the flag or file. A preloaded adapter that is
  // refused is reported, not fatal.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options);
  ~Coordinator();

  // Takes no new requests, waits for the running ones until `deadline`, then stops serving and lets
  // --data and the port go: another coordinator may have them. Once only. The metrics are served
  // until the destructor, which takes seconds.
  void Drain(absl::Time deadline);

 private:
  struct Monitor;
  struct Parts;
  Coordinator(std::unique_ptr<Monitor> monitor, std::unique_ptr<Parts> parts);
  std::unique_ptr<Monitor> monitor_;
  std::unique_ptr<Parts> parts_;
};

}  // namespace rootstock
