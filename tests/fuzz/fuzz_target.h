// What is fuzzed.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

// One parser with inputs to begin from.
struct FuzzTarget {
  std::string name;
  std::vector<std::string> seeds;  // right ones
  std::vector<std::string> words;  // that its inputs are made of
  // Reads `input` and checks what must hold of the outcome; aborts when it does not. What an
  // accepted input came to, in few words, or the refusal.
  std::function<absl::StatusOr<std::string>(const std::string& input)> run;
};

FuzzTarget SafetensorsTarget();
FuzzTarget PeftConfigTarget();
FuzzTarget CanonicalTarget();
FuzzTarget TokenizerTarget();
FuzzTarget AliasesTarget();
FuzzTarget TablesTarget();
FuzzTarget ManifestTarget();

// Prints and aborts when `holds` is false.
void Require(bool holds, const char* what);
}  // namespace rootstock
