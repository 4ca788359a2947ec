// Activations of the MLP, and embedding rows.
#pragma once

#include <cstdint>

namespace rootstock::kernels {

// out[t][i] = g / (1 + exp(-g)) · u, g = gate_up[t][i], u = gate_up[t][n + i].
// gate_up [tokens, 2 · n], out [tokens, n].
void SiluMul(const float* gate_up, int tokens, int n, float* out, int threads);

// out[t] = table[ids[t] - first_id]; rows outside [first_id, first_id + table_rows) become 0.
struct EmbedArgs {
  const void* table = nullptr;  // [table_rows, n], f32 or bf16
  bool bf16 = false;
  int table_rows = 0;
  int first_id = 0;
  const int32_t* ids = nullptr;  // [tokens]
  int tokens = 0;
  int n = 0;
  float* out = nullptr;  // [tokens, n]
};

void EmbedRows(const EmbedArgs& args, int threads);

}  // namespace rootstock::kernels
