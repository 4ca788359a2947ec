#include "tests/perf/trace/trace.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace rootstock {

std::vector<TraceRequest> MakeTrace(const TraceShape& shape, int requests) {
  std::mt19937_64 random(shape.seed);
  std::uniform_real_distribution<double> uniform(0, 1);
  std::uniform_int_distribution<int> length(shape.min_length, shape.max_length - 1);
  const double cv2 = shape.cv * shape.cv;
  std::gamma_distribution<double> gap(1 / cv2, cv2 / shape.rate);
  std::vector<TraceRequest> out;
  double at = 0;
  for (int i = 0; i < requests; ++i) {
    TraceRequest request;
    const double drawn = shape.adapters * std::pow(uniform(random), 1 / shape.alpha);
    request.adapter = std::min(shape.adapters - 1, static_cast<int>(drawn));
    if (shape.in_turn) request.adapter = i % shape.adapters;
    request.prompt_tokens = length(random);
    request.output_tokens = length(random);
    at += gap(random);
    request.at = at;
    out.push_back(request);
  }
  return out;
}

}  // namespace rootstock
