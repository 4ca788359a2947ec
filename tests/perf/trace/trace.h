// S-LoRA's synthetic trace: which adapter is asked when, and for how much.
#pragma once

#include <cstdint>
#include <vector>

namespace rootstock {

struct TraceShape {
  int adapters = 1;
  double alpha = 1;    // adapter = floor(adapters · U^(1/alpha)): 1 is uniform, smaller more skewed
  double cv = 1;       // of the gaps, which are gamma(1/cv², cv²/rate)
  double rate = 1;     // requests a second
  int min_length = 8;  // of prompt and output: uniform in [min, max)
  int max_length = 512;
  uint64_t seed = 42;
  bool in_turn = false;  // adapters one after the other instead: as many at once as there can be
};

struct TraceRequest {
  double at = 0;  // seconds
  int adapter = 0;
  int prompt_tokens = 0, output_tokens = 0;
};

// The same lengths and order of draws for any number of adapters, so that two traces of one seed
// ask for the same work.
std::vector<TraceRequest> MakeTrace(const TraceShape& shape, int requests);

}  // namespace rootstock
