// Where an object store holds adapter content: the coordinator writes it, groups read it.
#pragma once

#include <string>

#include "common/base/digest.h"

namespace rootstock {

inline std::string BlobKey(const Digest& digest) { return "blobs/" + digest.Hex(); }

}  // namespace rootstock
