#include "tests/sim/machine.h"

#include <algorithm>

namespace rootstock {

Machine::Machine(World& world, FakeGroup& group, MachineCosts costs)
    : world_(world), group_(group), costs_(costs), steps_ended_(group.log.size()) {
  group_.keep_log = true;
}

double Machine::CostOf(const StepPlan& plan) const {
  double tokens = 0;
  for (const PlanRow& row : plan.rows) tokens += row.query_len;
  // Each row at worst with an adapter of its own.
  const double adapters = static_cast<double>(plan.rows.size());
  return costs_.step + tokens * costs_.token + adapters * costs_.adapter +
         (plan.eager ? costs_.eager : 0);
}

void Machine::Look() {
  world_.Run();
  if (step_ends_ == kNever && group_.pending_steps() > 0) {
    const StepPlan& plan = group_.log[steps_ended_];
    double begins = now_;
    if (plan.eager) {
      for (const double end : others_end_) begins = std::max(begins, end);
    }
    step_ends_ = begins + CostOf(plan);
  }
  while (others_end_.size() < group_.pending_others()) others_end_.push_back(now_ + costs_.other);
}

double Machine::NextEnd() const {
  double next = step_ends_;
  for (const double end : others_end_) next = std::min(next, end);
  return next;
}

void Machine::RunUntil(double time) {
  world_.executor.Advance(absl::Microseconds(static_cast<int64_t>((time - now_) * 1000)));
  now_ = time;
  for (size_t i = 0; i < others_end_.size();) {
    if (others_end_[i] > now_) {
      ++i;
      continue;
    }
    others_end_.erase(others_end_.begin() + static_cast<long>(i));
    group_.CompleteOther(i);
    Look();
  }
  if (step_ends_ <= now_) {
    step_ends_ = kNever;
    ++steps_ended_;
    group_.CompleteStep();
  }
  Look();
}

}  // namespace rootstock
