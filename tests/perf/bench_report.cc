#include "tests/perf/bench_report.h"

#include <algorithm>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"

namespace rootstock {
namespace {

std::string ProcessorName() {
  std::ifstream in("/proc/cpuinfo");
  for (std::string line; std::getline(in, line);) {
    if (line.rfind("model name", 0) == 0) return line.substr(line.find(':') + 2);
  }
  return "unknown";
}

std::string Today() {
  const std::time_t now = std::time(nullptr);
  char text[16];
  std::strftime(text, sizeof text, "%Y-%m-%d", std::gmtime(&now));
  return text;
}

}  // namespace

std::vector<BenchResult> CeilingResults(const Ceilings& ceilings) {
  return {{"", kReadBandwidthCase, ceilings.read_bytes_per_us / 1e6, 0, "higher", "TB/s"},
          {"", kGemmRateCase, ceilings.flops_per_us / 1e6, 0, "higher", "TFLOP/s"}};
}

double Quantile(std::vector<double> values, double q) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  return values[std::min(values.size() - 1, static_cast<size_t>(q * values.size()))];
}

std::string ReportJson(const std::vector<BenchResult>& results, const std::string& command,
                       const std::string& commit, const std::string& machine) {
  std::string out = "[";
  for (const BenchResult& r : results) {
    nlohmann::ordered_json entry;
    entry["case"] = r.name;
    entry["value"] = r.value;
    if (!r.goal.empty()) {
      int number = 0;
      const bool numbered = absl::SimpleAtoi(r.goal, &number);
      entry["goal"] = numbered ? nlohmann::ordered_json(number) : nlohmann::ordered_json(r.goal);
      entry["bound"] = r.bound;
    }
    entry["better"] = r.better;
    entry["unit"] = r.unit;
    entry["machine"] = machine.empty() ? ProcessorName() : machine;
    entry["date"] = Today();
    entry["commit"] = commit;
    entry["command"] = command;
    out += (out.size() == 1 ? "\n" : ",\n") + entry.dump();
  }
  return out + "\n]\n";
}

}  // namespace rootstock
