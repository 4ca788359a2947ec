// Parts of the attention kernel that one thread runs.
#pragma once

#include "kernels/attention/attention.h"
#include "kernels/simd/isa.h"

namespace rootstock::kernels {

// Queries of one KV head taken together: pairs (token, query head of the group), heads fastest.
constexpr int kQueryBlock = 16;

// Pairs [first, first + count) of a row, count ≤ kQueryBlock.
ROOTSTOCK_VARIANTS(void AttendBlock(const AttentionArgs& args, const AttentionRow& row, int kv_head,
                                    int first, int count))

}  // namespace rootstock::kernels
