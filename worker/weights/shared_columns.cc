#include "worker/weights/shared_columns.h"

#include <cstdint>

namespace rootstock {

SharedPart PartToBring(const TpPlan& tp, Module module, int rows, const std::vector<int>& on_host,
                       int tp_rank) {
  SharedPart part;
  int64_t before = 0, mine = 0, all = 0;  // columns of the ranks below, of this one, of the host's
  for (const int rank : on_host) {
    const Range columns = tp.sharded_features(rank, module);
    if (rank < tp_rank) before += columns.size();
    if (rank == tp_rank) mine = columns.size();
    all += columns.size();
    if (columns.size() == 0) continue;
    if (!part.columns.empty() && part.columns.back().end == columns.begin) {
      part.columns.back().end = columns.end;
    } else {
      part.columns.push_back(columns);
    }
  }
  if (all == 0) return {};
  part.rows = {static_cast<int>(rows * before / all),
               static_cast<int>(rows * (before + mine) / all)};
  return part;
}

}  // namespace rootstock
