#include "kernels/attention/attention.h"

#include <vector>

#include "kernels/attention/attention_simd.h"

namespace rootstock::kernels {
namespace {

struct Item {
  int row;
  int kv_head;
  int first;
  int count;
};

}  // namespace

void PagedAttention(const AttentionArgs& args, int threads) {
  const auto attend = ROOTSTOCK_PICK(AttendBlock);
  const int group = args.num_heads / args.num_kv_heads;
  int items = 0;
  for (int r = 0; r < args.num_rows; ++r) {
    items += (args.rows[r].num_tokens * group + kQueryBlock - 1) / kQueryBlock;
  }
  std::vector<Item> work;
  work.reserve(static_cast<size_t>(items) * args.num_kv_heads);
  for (int r = args.num_rows - 1; r >= 0; --r) {
    const int pairs = args.rows[r].num_tokens * group;
    for (int h = 0; h < args.num_kv_heads; ++h) {
      for (int first = 0; first < pairs; first += kQueryBlock) {
        const int count = first + kQueryBlock < pairs ? kQueryBlock : pairs - first;
        work.push_back({r, h, first, count});
      }
    }
  }
#pragma omp parallel for num_threads(threads) schedule(dynamic, 1) if (work.size() > 1)
  for (size_t i = 0; i < work.size(); ++i) {
    const Item& item = work[i];
    attend(args, args.rows[item.row], item.kv_head, item.first, item.count);
  }
}

}  // namespace rootstock::kernels
