// The device of one simulated group: how long what it is told takes.
#pragma once

#include <deque>
#include <limits>
#include <vector>

#include "coordinator/engine/testing/world.h"

namespace rootstock {

// Milliseconds. A step: `step` + tokens and distinct adapters; an eager one also waits for loads.
struct MachineCosts {
  double step = 5, token = 0.02, adapter = 0.003, eager = 1.5;
  double other = 1;  // a load, a fetch from the host, a drop: their median on one H200
};

// Steps run one after the other; what else is sent begins at once and runs beside them. *Test
// thread only.*
class Machine {
 public:
  Machine(World& world, FakeGroup& group, MachineCosts costs = {});

  double now() const { return now_; }  // ms
  // Of what was sent meanwhile: when it begins and ends.
  void Look();
  // When the next thing ends; infinite when nothing is under way.
  double NextEnd() const;
  // Time passes until then; what ends at that moment is told to the engine.
  void RunUntil(double time);

 private:
  static constexpr double kNever = std::numeric_limits<double>::infinity();
  double CostOf(const StepPlan& plan) const;

  World& world_;
  FakeGroup& group_;
  const MachineCosts costs_;
  double now_ = 0;
  double step_ends_ = kNever;
  size_t steps_ended_;
  std::deque<double> others_end_;  // in the group's order
};

}  // namespace rootstock
