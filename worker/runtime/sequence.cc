#include "worker/runtime/sequence.h"

namespace rootstock {

void Sequence::Count(uint32_t position, int32_t token) {
  if (position < num_counted) return;
  num_counted = position + 1;
  if (NeedsCounts(spec.sampling)) counts.Add(token, position >= spec.num_prompt_tokens);
}

}  // namespace rootstock
