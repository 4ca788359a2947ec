// Few and small launches, for tools under which a launch takes seconds: see tests/racecheck.sh.
#include <gtest/gtest.h>

#include "kernels/sampler/sampler_cuda_testing.h"

namespace rootstock::kernels::cuda {
namespace {

// Every way through a row: cuts by count and by mass, ties, few and many left, penalties, logprobs.
TEST(FewSamplerLaunches, EveryWayThroughARow) {
  struct Way {
    Look look;
    float temperature, top_p;
    int top_k;
  };
  for (const Type type : {Type::kF32, Type::kBF16}) {
    std::mt19937 random(5);
    std::vector<RowCase> cases;
    for (const Way way : {Way{Look::kFlat, 1.0f, 0.9f, 0},
                          {Look::kSpread, 0.8f, 0.95f, 40},
                          {Look::kPeaked, 1.3f, 0.5f, 0},
                          {Look::kConstant, 1.0f, 0.3f, 0},
                          {Look::kFewValues, 1.0f, 1.0f, 300},
                          {Look::kFlat, 1.0f, 1.0f, 0}}) {
      RowCase c = MakeCase(way.look, type, 4096, cases.size(), random);
      c.row.temperature = way.temperature;
      c.row.top_p = way.top_p;
      c.row.top_k = way.top_k;
      if (cases.size() % 2 == 1) c.row.num_logprobs = 5;
      if (cases.size() % 3 == 2) c.bias = {{17, 1.5f}, {4000, -2.0f}};
      cases.push_back(c);
    }
    const Outputs out = RunBatch({.type = type, .vocab = 4096, .max_top = 8}, cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      const Verdict v = Judge(cases[i], out.tokens[i]);
      EXPECT_TRUE(v.equal || v.justified) << v.why << "; case " << i;
    }
    for (RowCase& c : cases) {
      c.bias.clear();
      c.row.temperature = 0.0f;
    }
    const Outputs greedy = RunBatch({.type = type, .vocab = 4096, .greedy_only = true}, cases);
    for (size_t i = 0; i < cases.size(); ++i) {
      EXPECT_EQ(greedy.tokens[i], Judge(cases[i], greedy.tokens[i]).expected) << "case " << i;
    }
  }
}

}  // namespace
}  // namespace rootstock::kernels::cuda
