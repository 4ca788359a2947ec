// GPT-2's alphabet: every byte as one printable character, in which byte-level vocabularies are
// written. Printable Latin-1 characters stand for themselves, the other bytes for U+0100 onwards.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace rootstock {

std::string ToByteAlphabet(std::string_view bytes);

// The bytes that `token` stands for; where one of its characters is not of the alphabet, its own
// UTF-8 bytes.
std::string FromByteAlphabet(std::string_view token);

}  // namespace rootstock
