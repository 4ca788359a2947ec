#include "coordinator/frontend/frontend.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/frontend/frontend_thread.h"
#include "coordinator/frontend/request_stream.h"
#include "coordinator/tokenizer/tokenizer.h"

namespace rootstock {
namespace {

constexpr size_t kMaxStops = 64;
constexpr size_t kMaxStopBytes = 1024;

// Hands each call to the request's thread. Thread-safe.
class BoundTokenSink : public TokenSink {
 public:
  BoundTokenSink(std::shared_ptr<FrontendThread> thread, std::shared_ptr<RequestStream> stream)
      : thread_(std::move(thread)), stream_(std::move(stream)) {}

  void Push(TokenBatch batch) override {
    thread_->Post([stream = stream_, batch = std::move(batch)]() mutable {
      stream->Apply(std::move(batch));
    });
  }
  void Close(const absl::Status& status) override {
    thread_->Post([stream = stream_, status] { stream->Close(status); });
  }

 private:
  const std::shared_ptr<FrontendThread> thread_;
  const std::shared_ptr<RequestStream> stream_;
};

}  // namespace

Frontend::Frontend(std::string model, std::shared_ptr<const Tokenizer> tokenizer, int threads)
    : model_(std::move(model)), tokenizer_(std::move(tokenizer)) {
  for (int i = 0; i < std::max(threads, 1); ++i) {
    threads_.push_back(std::make_shared<FrontendThread>());
  }
}

Frontend::~Frontend() {
  for (const auto& thread : threads_) thread->Stop();
}

absl::Status Frontend::NeedTokenizer(const std::string& field, const std::string& value) const {
  if (has_tokenizer()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, Reason::kNoTokenizer, field, value,
                   absl::StrCat("model '", model_, "' has no tokenizer, only token ids"));
}

absl::StatusOr<std::vector<int32_t>> Frontend::Encode(std::string_view text,
                                                      bool add_special_tokens,
                                                      bool parse_special) const {
  RETURN_IF_ERROR(NeedTokenizer("prompt", std::string(text.substr(0, 40))));
  return tokenizer_->Encode(
      text, {.add_special_tokens = add_special_tokens, .parse_special = parse_special});
}

absl::StatusOr<std::string> Frontend::Decode(std::span<const int32_t> ids,
                                             bool skip_special_tokens) const {
  RETURN_IF_ERROR(NeedTokenizer("token_ids", ""));
  return tokenizer_->Decode(ids, skip_special_tokens);
}

std::string Frontend::TokenText(int32_t id) const {
  if (!has_tokenizer()) return "";
  return tokenizer_->Decode({&id, 1}, /*skip_special=*/false);
}

absl::Status Frontend::CheckStop(const std::vector<std::string>& stop) const {
  if (stop.size() > kMaxStops) {
    return InvalidField(Reason::kInvalidArgument, "stop", absl::StrCat(stop.size(), " strings"),
                        absl::StrCat("at most ", kMaxStops));
  }
  for (const std::string& text : stop) {
    RETURN_IF_ERROR(NeedTokenizer("stop", text));
    if (text.empty()) {
      return InvalidField(Reason::kInvalidArgument, "stop", "\"\"", "a stop string can't be empty");
    }
    if (text.size() > kMaxStopBytes) {
      return InvalidField(Reason::kInvalidArgument, "stop", text,
                          absl::StrCat("at most ", kMaxStopBytes, " bytes"));
    }
  }
  return absl::OkStatus();
}

std::shared_ptr<TokenSink> Frontend::Open(OpenRequest request, std::shared_ptr<GenerateSink> sink,
                                          StopCallback on_stop) {
  auto stream =
      std::make_shared<RequestStream>(request, tokenizer_, std::move(sink), std::move(on_stop));
  return std::make_shared<BoundTokenSink>(threads_[next_++ % threads_.size()], std::move(stream));
}

}  // namespace rootstock
