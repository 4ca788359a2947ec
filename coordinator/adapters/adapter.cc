#include "coordinator/adapters/adapter.h"

namespace rootstock {

const char* AdapterStateName(AdapterState state) {
  switch (state) {
    case AdapterState::kStaged:
      return "staged";
    case AdapterState::kActive:
      return "active";
    case AdapterState::kRetired:
      return "retired";
    case AdapterState::kFailed:
      return "failed";
  }
  return "failed";
}

bool MayMove(AdapterState from, AdapterState to) {
  switch (from) {
    case AdapterState::kStaged:
      return to == AdapterState::kActive;
    case AdapterState::kActive:
      return to == AdapterState::kRetired || to == AdapterState::kFailed;
    case AdapterState::kRetired:
      return to == AdapterState::kActive;  // registered again in time
    case AdapterState::kFailed:
      return to == AdapterState::kActive || to == AdapterState::kRetired;
  }
  return false;
}

}  // namespace rootstock
