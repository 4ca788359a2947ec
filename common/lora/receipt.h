// What was understood of an adapter, told to whoever registers it.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/digest.h"
#include "common/lora/peft_loader.h"

namespace rootstock {

struct ReceiptModule {
  int layer = 0;
  Module module = Module::kQ;
  int lora_rank = 0;
  float scale = 0.0f;
  double delta_frobenius = 0.0;  // of scale · B·A
};

struct Receipt {
  Digest digest;  // of the canonical blob
  uint64_t blob_bytes = 0;
  std::string file_dtype;     // "F32", "F16", "BF16" or "mixed"
  double max_rounding = 0.0;  // largest relative change of an element when rounded to bf16
  std::string base_model_name;
  std::string base_name_warning;  // empty when the adapter names the served model, or none
  std::vector<ReceiptModule> modules;
  std::vector<std::string> harmless_fields;
};

// `blob` is EncodeCanonical(adapter, model).
Receipt MakeReceipt(const PeftAdapter& adapter, const ModelSpec& model, const std::string& blob,
                    const std::string& served_model_name);

// ‖scale · B·A‖ without the product itself: with G = A·Aᵀ and H = Bᵀ·B, both r × r, it is
// |scale| · sqrt(Σ G∘H).
// a: [lora_rank, in], b: [out, lora_rank], row-major.
double DeltaFrobenius(const LoraWeights& weights, int lora_rank, int in, int out, float scale);

}  // namespace rootstock
