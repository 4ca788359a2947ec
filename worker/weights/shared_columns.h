// How the tp_ranks of a host divide the pages that several of them need. Internal to this folder.
#pragma once

#include <vector>

#include "common/model/model_spec.h"
#include "common/tp/tp.h"

namespace rootstock {

// A part of a matrix whose columns the tp_ranks share out: `rows` of each of the `columns`.
struct SharedPart {
  Range rows;
  std::vector<Range> columns;  // ascending, apart
};

// Of a row-parallel module's weight with `rows` rows: what tp_rank brings for all of `on_host`
// (ascending, tp_rank among them). The parts of these ranks cover what any of them needs, once, and
// each has as many rows as its columns ask for: its bytes are its slice's.
SharedPart PartToBring(const TpPlan& tp, Module module, int rows, const std::vector<int>& on_host,
                       int tp_rank);

}  // namespace rootstock
