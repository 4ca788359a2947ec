// Counters, gauges and histograms of one process, for Prometheus. Label values come from closed
// or bounded lists, so that the number of series is known before the first request.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace rootstock {

// Handles of one series: cheap to copy, valid as long as the Metrics they come from, unless the
// series is forgotten. Thread-safe.
class Counter {
 public:
  void Add(double amount = 1) const;  // ≥ 0
  double Value() const;

 private:
  friend class FamilyState;
  void* series_ = nullptr;
};
class Gauge {
 public:
  void Set(double value) const;
  void Add(double amount) const;
  double Value() const;

 private:
  friend class FamilyState;
  void* series_ = nullptr;
};
class Histogram {
 public:
  void Observe(double value) const;

 private:
  friend class FamilyState;
  void* series_ = nullptr;
};

// A label with every value that it may take: each combination exists from the start, at 0.
// With `at_most` the values come later instead (names of groups, at most 64): those beyond the
// bound share the value "other".
struct Label {
  std::string name;
  std::vector<std::string> values = {};
  size_t at_most = 0;
};

class FamilyState;

// All series of one name. Copies share the series. Thread-safe.
template <typename Series>
class Family {
 public:
  // The series of these label values, in the order of the labels; none for a family without
  // labels. A value that its label does not list is a bug of ours: an assertion, and where those
  // are off a series that nobody sees.
  template <typename... Values>
  Series At(const Values&... values) const {
    return Find({std::string_view(values)...});
  }

  // The series that have this value, which came later, are no more, and another may come in its
  // place. Nobody may use handles of them any longer. One that is not there is fine.
  void Forget(std::string_view label, std::string_view value) const;

 private:
  friend class Metrics;
  Series Find(const std::vector<std::string_view>& values) const;
  std::shared_ptr<FamilyState> state_;
};

// The families of a process. Names get the prefix "rootstock_"; counters end in "_total", units
// are base units. Each name may be made once. Thread-safe.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  Family<Counter> MakeCounter(const std::string& name, const std::string& help,
                              std::vector<Label> labels = {});
  Family<Gauge> MakeGauge(const std::string& name, const std::string& help,
                          std::vector<Label> labels = {});
  // `bounds`: upper ends of the buckets, ascending, without infinity.
  Family<Histogram> MakeHistogram(const std::string& name, const std::string& help,
                                  std::vector<double> bounds, std::vector<Label> labels = {});
  // A gauge `name` that is always 1, with facts as labels.
  void MakeInfo(const std::string& name, const std::string& help,
                const std::vector<std::pair<std::string, std::string>>& facts);
  // What a scrape returns now, without the process's own figures.
  std::string Text() const;

 private:
  friend class MetricsServer;
  struct State;
  std::unique_ptr<State> state_;
};

// Serves GET /metrics: the families of `metrics` and process_* of this process. One a process;
// the destructor takes two seconds. Thread-safe.
class MetricsServer {
 public:
  // `port` 0 lets the system choose. A port that is taken: UNAVAILABLE naming the address.
  // `metrics` outlives the server.
  static absl::StatusOr<std::unique_ptr<MetricsServer>> Start(const Metrics& metrics,
                                                              const std::string& host, int port);
  ~MetricsServer();
  int port() const;  // bound

 private:
  struct State;
  explicit MetricsServer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// 1, 2, 4 … up to `largest`: bounds for counts of tokens, rows, requests.
std::vector<double> PowersOfTwo(double largest);

}  // namespace rootstock
