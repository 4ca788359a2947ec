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
  // Errors name the flag or file. A preloaded adapter that is refused is reported, not fatal.
  static absl::StatusOr<std::unique_ptr<Coordinator>> Start(const CoordinatorOptions& options);
  ~Coordinator();

  // Takes no new requests, waits for the running ones until `deadline`, then stops serving.
  void Drain(absl::Time deadline);

 private:
  struct Parts;
  explicit Coordinator(std::unique_ptr<Parts> parts);
  std::unique_ptr<Parts> parts_;
};

}  // namespace rootstock
