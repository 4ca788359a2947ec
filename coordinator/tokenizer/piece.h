// A stretch of text on its way to becoming ids.
#pragma once

#include <cstdint>
#include <string>

namespace rootstock {

struct Piece {
  std::string text;
  // The added token that this piece is, or -1 for text still to be tokenized.
  int32_t id = -1;
  // Whether it begins where the whole text begins.
  bool at_start = false;
};

}  // namespace rootstock
