// Reads tests/golden: what transformers + PEFT answered.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace rootstock {

struct GoldenPrompt {
  std::vector<int32_t> prompt, tokens;
  std::vector<float> logits;                   // [vocab], last prompt position
  std::vector<std::vector<int32_t>> top_ids;   // [tokens - 1][32]
  std::vector<std::vector<float>> top_logits;  // [tokens - 1][32]
};

struct Golden {
  std::string name;               // MODEL--ADAPTER
  std::filesystem::path model;    // from the project's root; a bare name: in the cache
  std::filesystem::path adapter;  // from the project's root; empty: the base
  std::vector<GoldenPrompt> prompts;
};

// Every golden of `model` ("smollm2", "tiny-…"). Aborts on files that are not as make_goldens.py
// writes them.
std::vector<Golden> ReadGoldens(const std::filesystem::path& dir, const std::string& model);

// Names of all models in `dir`, sorted.
std::vector<std::string> GoldenModels(const std::filesystem::path& dir);

}  // namespace rootstock
