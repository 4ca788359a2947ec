#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>
#include <thread>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/ctl/answer.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/output.h"
#include "coordinator/ctl/request_flags.h"
#include "coordinator/ctl/text.h"
#include "coordinator/ctl/wait_notice.h"
#include "rootstock/v1/inference.grpc.pb.h"

namespace rootstock {
namespace {

using OnDelta = std::function<void(const v1::Delta&)>;

constexpr std::chrono::seconds kPatience{2};

// What the calls of one command share. Thread-safe.
struct Caller {
  explicit Caller(const ClientOptions& client)
      : options(client),
        channel(Connect(client)),
        stub(v1::Inference::NewStub(channel)),
        notice(channel, kPatience, [](const std::string& why) {
          std::fprintf(stderr, "loractl: %s: waiting for one (--timeout bounds that)\n",
                       why.c_str());
        }) {}

  // One call from its first message to its status; ended early when nobody can read the answer.
  grpc::Status Run(const v1::GenerateRequest& request, grpc::ClientContext& context, Answer& answer,
                   const OnDelta& on_delta) {
    SetDeadline(options, context);
    const auto reader = stub->Generate(&context, request);
    v1::GenerateResponse message;
    while (reader->Read(&message)) {
      answer.Add(message);
      if (!message.has_accepted()) notice.Heard();
      if (message.has_delta()) on_delta(message.delta());
      if (OutputLost()) context.TryCancel();
    }
    const grpc::Status status = reader->Finish();
    notice.Heard();
    return status;
  }

  const ClientOptions options;
  const std::shared_ptr<grpc::Channel> channel;
  const std::unique_ptr<v1::Inference::Stub> stub;
  WaitNotice notice;
};

// Lines of several samples or requests, by what stands before them.
class LabelledLines {
 public:
  LabelledLines(LinePrinter* printer, std::string label, bool many_samples)
      : printer_(printer), label_(std::move(label)), many_samples_(many_samples) {}
  void Add(const v1::Delta& delta) {
    const std::string label = many_samples_ ? absl::StrCat(label_, "#", delta.index()) : label_;
    printer_->Print(label, ShownText(delta), &lines_[label]);
    if (delta.finish_reason() != v1::FINISH_REASON_UNSPECIFIED) {
      printer_->End(label, &lines_[label]);
    }
  }

 private:
  LinePrinter* const printer_;
  const std::string label_;
  const bool many_samples_;
  std::map<std::string, std::string> lines_;  // unfinished, by label
};

absl::StatusOr<std::vector<BatchLine>> ReadBatch(const std::string& file,
                                                 const v1::GenerateRequest& defaults) {
  ASSIGN_OR_RETURN(const std::string content, ReadTextFile("batch", file));
  std::istringstream input(content);
  std::vector<BatchLine> lines;
  int number = 0;
  for (std::string text; std::getline(input, text);) {
    ++number;
    if (text.find_first_not_of(" \t\r") == std::string::npos) continue;
    auto line = ParseBatchLine(text, defaults);
    if (!line.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(file, ":", number, ": ", std::string(line.status().message())));
    }
    if (line->label.empty()) line->label = absl::StrCat("line ", number);
    lines.push_back(*std::move(line));
  }
  if (lines.empty()) {
    return InvalidField(Reason::kInvalidArgument, "batch", file, "holds no request");
  }
  return lines;
}

// The requests of a batch on their threads.
class Batch {
 public:
  Batch(const ClientOptions& options, std::vector<BatchLine> lines)
      : options_(options), lines_(std::move(lines)), caller_(options), printer_(LabelWidth()) {}

  int Run(int parallel) {
    std::vector<std::thread> threads;
    const size_t count = std::min(lines_.size(), static_cast<size_t>(std::max(parallel, 1)));
    for (size_t i = 0; i < count; ++i) {
      threads.emplace_back([this] {
        for (size_t at = next_++; at < lines_.size(); at = next_++) RunLine(at);
      });
    }
    for (std::thread& thread : threads) thread.join();
    return worst_;
  }

 private:
  size_t LabelWidth() const {
    size_t width = 0;
    for (const BatchLine& line : lines_) {
      width = std::max(width, line.label.size() + (line.request.n() > 1 ? 2 : 0));
    }
    return width;
  }

  void RunLine(size_t at) {
    const BatchLine& line = lines_[at];
    std::this_thread::sleep_until(start_ + std::chrono::milliseconds(line.delay_ms));
    Answer answer;
    LabelledLines shown(&printer_, line.label, line.request.n() > 1);
    grpc::ClientContext context;
    const grpc::Status status = caller_.Run(line.request, context, answer, [&](const auto& delta) {
      if (!options_.json) shown.Add(delta);
    });
    Report(at, status, context, answer);
  }

  void Report(size_t at, const grpc::Status& status, const grpc::ClientContext& context,
              const Answer& answer) {
    std::lock_guard lock(mutex_);
    worst_ = std::max(worst_, ExitCodeOf(status, context));
    if (OutputLost()) return;
    if (options_.json) {
      nlohmann::json out = answer.ToJson();
      out["line"] = at;
      out["label"] = lines_[at].label;
      if (!status.ok()) out["error"] = ErrorJson(status, context);
      std::printf("%s\n", out.dump().c_str());
    } else if (!status.ok()) {
      std::fprintf(stderr, "loractl: %s: %s\n", lines_[at].label.c_str(),
                   ErrorLine(status, context).c_str());
    }
  }

  const ClientOptions options_;
  const std::vector<BatchLine> lines_;
  Caller caller_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  LinePrinter printer_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  int worst_ = kExitOk;
};

}  // namespace

int Generate(const ClientOptions& options, v1::GenerateRequest request) {
  Caller caller(options);
  const bool many = request.n() > 1;
  LinePrinter printer(0);
  LabelledLines lines(&printer, "", many);
  Answer answer;
  bool in_line = false;
  grpc::ClientContext context;
  const grpc::Status status = caller.Run(request, context, answer, [&](const v1::Delta& delta) {
    if (options.json) return;
    if (many) {
      lines.Add(delta);
    } else {
      const std::string text = ShownText(delta);
      if (!text.empty()) in_line = text.back() != '\n';
      std::fputs(text.c_str(), stdout);
      std::fflush(stdout);
    }
  });
  if (OutputLost()) return kExitFailed;
  if (!status.ok() && in_line) {  // the error has a line of its own
    std::fputc('\n', stdout);
    std::fflush(stdout);
  }
  if (!status.ok()) return Fail(options, status, context);
  std::printf("%s\n", options.json ? answer.ToJson().dump().c_str() : "");
  return kExitOk;
}

int GenerateBatch(const ClientOptions& options, const v1::GenerateRequest& defaults,
                  const std::string& file, int parallel) {
  auto lines = ReadBatch(file, defaults);
  if (!lines.ok()) {
    std::fprintf(stderr, "loractl: %s\n", std::string(lines.status().message()).c_str());
    return kExitUsage;
  }
  return Batch(options, *std::move(lines)).Run(parallel);
}

}  // namespace rootstock
