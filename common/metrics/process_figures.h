// process_* of this process, read from /proc at each scrape.
#pragma once

#include <memory>

namespace prometheus {
class Collectable;
}  // namespace prometheus

namespace rootstock {

std::shared_ptr<prometheus::Collectable> MakeProcessFigures();

}  // namespace rootstock
