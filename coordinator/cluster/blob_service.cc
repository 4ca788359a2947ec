#include <grpcpp/server_context.h>

#include <fstream>
#include <span>
#include <utility>

#include "common/base/status.h"
#include "common/wire/error_trailer.h"
#include "common/wire/plan_wire.h"
#include "coordinator/cluster/group_service.h"
#include "rootstock/v1/group.grpc.pb.h"

namespace rootstock {
namespace {

constexpr size_t kChunkBytes = 1 << 20;

// Sends a file chunk by chunk; deletes itself. One thread at a time.
class BlobWriter : public grpc::ServerWriteReactor<v1::FetchChunk> {
 public:
  BlobWriter(grpc::CallbackServerContext* context, const Digest& digest,
             const std::function<void(const Digest&)>& doubt)
      : context_(context), digest_(digest), doubt_(doubt) {}

  void Refuse(const absl::Status& status) { Finish(ToGrpcStatus(status, context_)); }

  void Send(absl::StatusOr<std::ifstream> file) {
    if (!file.ok()) return Refuse(file.status());
    file_ = *std::move(file);
    file_.seekg(0, std::ios::end);
    left_ = static_cast<uint64_t>(file_.tellg());
    file_.seekg(0);
    chunk_.set_total_bytes(left_);
    WriteNext();
  }

  void OnWriteDone(bool ok) override {
    chunk_.clear_total_bytes();
    if (!ok) {
      Finish({grpc::StatusCode::CANCELLED, "the reader left"});
    } else if (left_ > 0) {
      WriteNext();
    } else if (hash_.Finish() != digest_) {
      // The disk has spoilt it without the system's knowledge: the file looks as it did.
      FinishSpoilt("the stored content is not what it was");
    } else {
      Finish(grpc::Status::OK);
    }
  }
  void OnDone() override { delete this; }

 private:
  void FinishSpoilt(const char* why) {
    doubt_(digest_);
    Refuse(MakeError(absl::StatusCode::kDataLoss, Reason::kDigestMismatch, "digest",
                     digest_.Short(), why));
  }
  void WriteNext() {
    std::string* data = chunk_.mutable_data();
    data->resize(std::min<uint64_t>(left_, kChunkBytes));
    file_.read(data->data(), static_cast<std::streamsize>(data->size()));
    if (!file_) return FinishSpoilt("the stored content can't be read to its end");
    hash_.Update(std::span(reinterpret_cast<const uint8_t*>(data->data()), data->size()));
    left_ -= data->size();
    StartWrite(&chunk_);
  }

  grpc::CallbackServerContext* const context_;
  const Digest digest_;
  const std::function<void(const Digest&)>& doubt_;
  std::ifstream file_;
  uint64_t left_ = 0;
  Sha256 hash_;  // of what was sent
  v1::FetchChunk chunk_;
};

}  // namespace

// Thread-safe.
class BlobService::Service : public v1::Blobs::CallbackService {
 public:
  explicit Service(Ports ports) : ports_(std::move(ports)) {}

  grpc::ServerWriteReactor<v1::FetchChunk>* Fetch(grpc::CallbackServerContext* context,
                                                  const v1::FetchRequest* request) override {
    const auto digest = DigestFromBytes(request->digest(), "digest");
    auto* writer = new BlobWriter(context, digest.value_or(Digest()), ports_.doubt);
    if (!digest.ok()) {
      writer->Refuse(digest.status());
      return writer;
    }
    const Post& post = ports_.is_on_disk(*digest) ? ports_.read : ports_.fetch;
    if (!post([this, writer, digest = *digest] { writer->Send(ports_.open(digest)); })) {
      writer->Refuse(MakeError(absl::StatusCode::kResourceExhausted, Reason::kQueueFull, "digest",
                               digest->Short(), "too many fetches wait; try again later"));
    }
    return writer;
  }

 private:
  const Ports ports_;
};

BlobService::BlobService(Ports ports) : service_(std::make_unique<Service>(std::move(ports))) {}
BlobService::~BlobService() = default;
grpc::Service* BlobService::service() { return service_.get(); }

}  // namespace rootstock
