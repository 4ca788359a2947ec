#include "common/metrics/process_figures.h"

#include <dirent.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <sstream>
#include <string>
#include <vector>

#include "prometheus/collectable.h"
#include "prometheus/metric_family.h"

namespace rootstock {
namespace {

using prometheus::MetricFamily;
using prometheus::MetricType;

MetricFamily Single(const std::string& name, const std::string& help, MetricType type,
                    double value) {
  prometheus::ClientMetric metric;
  (type == MetricType::Counter ? metric.counter.value : metric.gauge.value) = value;
  return MetricFamily{name, help, type, {metric}};
}

// Fields of /proc/self/stat after the command's closing parenthesis: field 3 is at index 0.
std::vector<std::string> StatFields() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream rest(line.substr(std::min(line.size(), line.rfind(')') + 1)));
  std::vector<std::string> fields;
  for (std::string field; rest >> field;) fields.push_back(field);
  return fields;
}

double BootTime() {
  std::ifstream file("/proc/stat");
  for (std::string word; file >> word;) {
    double seconds = 0;
    if (word == "btime" && file >> seconds) return seconds;
  }
  return 0;
}

double OpenFiles() {
  DIR* dir = opendir("/proc/self/fd");
  if (dir == nullptr) return 0;
  double count = 0;
  while (readdir(dir) != nullptr) ++count;
  closedir(dir);
  return count - 3;  // ".", ".." and the directory itself
}

// Thread-safe: holds nothing.
class ProcessFigures : public prometheus::Collectable {
 public:
  std::vector<MetricFamily> Collect() const override {
    const std::vector<std::string> stat = StatFields();
    const auto field = [&](size_t number) {
      return number - 3 < stat.size() ? std::stod(stat[number - 3]) : 0.0;
    };
    const double ticks = static_cast<double>(sysconf(_SC_CLK_TCK));
    rlimit files{};
    getrlimit(RLIMIT_NOFILE, &files);
    return {
        Single("process_cpu_seconds_total", "User and system CPU time.", MetricType::Counter,
               (field(14) + field(15)) / ticks),
        Single("process_start_time_seconds", "Start as Unix time.", MetricType::Gauge,
               BootTime() + field(22) / ticks),
        Single("process_virtual_memory_bytes", "Virtual memory.", MetricType::Gauge, field(23)),
        Single("process_resident_memory_bytes", "Resident memory.", MetricType::Gauge,
               field(24) * static_cast<double>(sysconf(_SC_PAGESIZE))),
        Single("process_threads", "Threads.", MetricType::Gauge, field(20)),
        Single("process_open_fds", "Open file descriptors.", MetricType::Gauge, OpenFiles()),
        Single("process_max_fds", "Limit of open file descriptors.", MetricType::Gauge,
               static_cast<double>(files.rlim_cur)),
    };
  }
};

}  // namespace

std::shared_ptr<prometheus::Collectable> MakeProcessFigures() {
  return std::make_shared<ProcessFigures>();
}

}  // namespace rootstock
