#include "common/metrics/metrics.h"

#include <cassert>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/log.h"
#include "common/base/status.h"
#include "common/metrics/process_figures.h"
#include "prometheus/counter.h"
#include "prometheus/exposer.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"

namespace rootstock {
namespace {

constexpr char kPrefix[] = "rootstock_";
constexpr char kOverflow[] = "other";

}  // namespace

void Counter::Add(double amount) const {
  static_cast<prometheus::Counter*>(series_)->Increment(amount);
}
double Counter::Value() const { return static_cast<prometheus::Counter*>(series_)->Value(); }
void Gauge::Set(double value) const { static_cast<prometheus::Gauge*>(series_)->Set(value); }
void Gauge::Add(double amount) const {
  static_cast<prometheus::Gauge*>(series_)->Increment(amount);
}
double Gauge::Value() const { return static_cast<prometheus::Gauge*>(series_)->Value(); }
void Histogram::Observe(double value) const {
  static_cast<prometheus::Histogram*>(series_)->Observe(value);
}

// The series of a family by label values. `add` makes a series of the family, `remove` frees it,
// `hidden` is one outside it. Thread-safe.
class FamilyState {
 public:
  using Add = std::function<void*(const std::map<std::string, std::string>&)>;

  using Remove = std::function<void(void*)>;

  FamilyState(std::string name, std::vector<Label> labels, Add add, Remove remove,
              std::shared_ptr<void> hidden)
      : name_(std::move(name)),
        labels_(std::move(labels)),
        add_(std::move(add)),
        remove_(std::move(remove)),
        hidden_(std::move(hidden)) {
    for (const Label& label : labels_) {
      seen_.emplace_back(label.values.begin(), label.values.end());
    }
    std::vector<std::string> values;
    AddCombinations(values);
  }

  template <typename Series>
  Series Find(const std::vector<std::string_view>& asked) {
    Series series;
    series.series_ = Find(asked);
    return series;
  }

  void Forget(std::string_view label, std::string_view value) {
    const std::string gone(value);
    if (gone == kOverflow) return;  // others may share it
    std::lock_guard lock(mutex_);
    for (size_t i = 0; i < labels_.size(); ++i) {
      if (labels_[i].name != label || labels_[i].at_most == 0 || seen_[i].erase(gone) == 0)
        continue;
      std::erase_if(series_, [&](const auto& entry) {
        if (entry.first[i] != gone) return false;
        remove_(entry.second);
        return true;
      });
    }
  }

 private:
  // Every combination that starts with `values`, where all further labels have closed lists.
  void AddCombinations(std::vector<std::string>& values) {
    if (values.size() == labels_.size()) {
      Make(values);
      return;
    }
    for (const std::string& value : labels_[values.size()].values) {
      values.push_back(value);
      AddCombinations(values);
      values.pop_back();
    }
  }

  void* Make(const std::vector<std::string>& values) {
    std::map<std::string, std::string> named;
    for (size_t i = 0; i < values.size(); ++i) named[labels_[i].name] = values[i];
    return series_[values] = add_(named);
  }

  void* Find(const std::vector<std::string_view>& asked) {
    if (asked.size() != labels_.size()) return Unlisted("number of labels");
    std::lock_guard lock(mutex_);
    std::vector<std::string> values(asked.begin(), asked.end());
    for (size_t i = 0; i < values.size(); ++i) {
      if (seen_[i].contains(values[i])) continue;
      if (labels_[i].at_most == 0) return Unlisted(values[i]);
      if (seen_[i].size() < labels_[i].at_most) {
        seen_[i].insert(values[i]);
      } else {
        values[i] = kOverflow;
      }
    }
    const auto it = series_.find(values);
    return it != series_.end() ? it->second : Make(values);
  }

  void* Unlisted(const std::string& what) {
    LogError("metric ", name_, " has no label value '", what, "'");
    assert(false && "unlisted label value");
    return hidden_.get();
  }

  const std::string name_;
  const std::vector<Label> labels_;
  const Add add_;
  const Remove remove_;
  const std::shared_ptr<void> hidden_;
  std::mutex mutex_;
  std::vector<std::set<std::string>> seen_;  // by label
  std::map<std::vector<std::string>, void*> series_;
};

template <typename Series>
Series Family<Series>::Find(const std::vector<std::string_view>& values) const {
  return state_->template Find<Series>(values);
}
template <typename Series>
void Family<Series>::Forget(std::string_view label, std::string_view value) const {
  state_->Forget(label, value);
}
template class Family<Counter>;
template class Family<Gauge>;
template class Family<Histogram>;

struct Metrics::State {
  // Makes the same name twice an exception, which is a bug of ours.
  std::shared_ptr<prometheus::Registry> registry =
      std::make_shared<prometheus::Registry>(prometheus::Registry::InsertBehavior::Throw);
};

Metrics::Metrics() : state_(std::make_unique<State>()) {}
Metrics::~Metrics() = default;

Family<Counter> Metrics::MakeCounter(const std::string& name, const std::string& help,
                                     std::vector<Label> labels) {
  auto* family =
      &prometheus::BuildCounter().Name(kPrefix + name).Help(help).Register(*state_->registry);
  Family<Counter> out;
  out.state_ = std::make_shared<FamilyState>(
      name, std::move(labels), [family](const auto& named) { return &family->Add(named); },
      [family](void* series) { family->Remove(static_cast<prometheus::Counter*>(series)); },
      std::make_shared<prometheus::Counter>());
  return out;
}

Family<Gauge> Metrics::MakeGauge(const std::string& name, const std::string& help,
                                 std::vector<Label> labels) {
  auto* family =
      &prometheus::BuildGauge().Name(kPrefix + name).Help(help).Register(*state_->registry);
  Family<Gauge> out;
  out.state_ = std::make_shared<FamilyState>(
      name, std::move(labels), [family](const auto& named) { return &family->Add(named); },
      [family](void* series) { family->Remove(static_cast<prometheus::Gauge*>(series)); },
      std::make_shared<prometheus::Gauge>());
  return out;
}

Family<Histogram> Metrics::MakeHistogram(const std::string& name, const std::string& help,
                                         std::vector<double> bounds, std::vector<Label> labels) {
  auto* family =
      &prometheus::BuildHistogram().Name(kPrefix + name).Help(help).Register(*state_->registry);
  Family<Histogram> out;
  out.state_ = std::make_shared<FamilyState>(
      name, std::move(labels),
      [family, bounds](const auto& named) { return &family->Add(named, bounds); },
      [family](void* series) { family->Remove(static_cast<prometheus::Histogram*>(series)); },
      std::make_shared<prometheus::Histogram>(bounds));
  return out;
}

void Metrics::MakeInfo(const std::string& name, const std::string& help,
                       const std::vector<std::pair<std::string, std::string>>& facts) {
  const std::map<std::string, std::string> labels(facts.begin(), facts.end());
  prometheus::BuildGauge()
      .Name(kPrefix + name)
      .Help(help)
      .Register(*state_->registry)
      .Add(labels)
      .Set(1);
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(state_->registry->Collect());
}

struct MetricsServer::State {
  std::shared_ptr<prometheus::Collectable> process = MakeProcessFigures();
  std::unique_ptr<prometheus::Exposer> exposer;
  int port = 0;
};

absl::StatusOr<std::unique_ptr<MetricsServer>> MetricsServer::Start(const Metrics& metrics,
                                                                    const std::string& host,
                                                                    int port) {
  const std::string address = absl::StrCat(host, ":", port);
  auto state = std::make_unique<State>();
  try {
    state->exposer = std::make_unique<prometheus::Exposer>(address);
  } catch (const std::exception& error) {
    return MakeError(absl::StatusCode::kUnavailable, Reason::kIoError, "metrics address", address,
                     "can't listen there; is the port taken?");
  }
  state->exposer->RegisterCollectable(metrics.state_->registry);
  state->exposer->RegisterCollectable(state->process);
  state->port = state->exposer->GetListeningPorts().at(0);
  return std::unique_ptr<MetricsServer>(new MetricsServer(std::move(state)));
}

MetricsServer::MetricsServer(std::unique_ptr<State> state) : state_(std::move(state)) {}
MetricsServer::~MetricsServer() = default;
int MetricsServer::port() const { return state_->port; }

std::vector<double> PowersOfTwo(double largest) {
  std::vector<double> bounds;
  for (double bound = 1; bound <= largest; bound *= 2) bounds.push_back(bound);
  return bounds;
}

}  // namespace rootstock
