#include "coordinator/rpc/uploads_service.h"

#include <grpcpp/server_context.h>

#include <cstring>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/wire/error_trailer.h"
#include "coordinator/adapters/adapter_path.h"
#include "coordinator/rpc/adapter_message.h"
#include "coordinator/rpc/finished_uploads.h"
#include "coordinator/rpc/page.h"
#include "coordinator/rpc/status.h"
#include "rootstock/v1/uploads.grpc.pb.h"

namespace rootstock {
namespace {

absl::StatusOr<std::vector<UploadFile>> FilesOf(const v1::StartUploadRequest& request) {
  std::vector<UploadFile> files;
  for (const v1::UploadFile& file : request.files()) {
    UploadFile out{file.name(), file.bytes(), {}};
    if (file.sha256().size() != out.sha256.bytes.size()) {
      return InvalidField(Reason::kInvalidArgument, "files.sha256", file.name(),
                          "a sha256 has 32 bytes");
    }
    std::memcpy(out.sha256.bytes.data(), file.sha256().data(), out.sha256.bytes.size());
    files.push_back(std::move(out));
  }
  return files;
}

void FillUpload(const UploadState& state, v1::Upload* out) {
  out->set_upload_id(state.id);
  for (const UploadFile& file : state.files) {
    v1::UploadFile* wire = out->add_files();
    wire->set_name(file.name);
    wire->set_bytes(file.bytes);
    wire->set_sha256(file.sha256.bytes.data(), file.sha256.bytes.size());
    wire->set_received(file.received);
  }
}

// One Write call: either a read is outstanding or a piece is being written, never both. Deletes
// itself.
class WriteCall : public grpc::ServerReadReactor<v1::WriteUploadRequest> {
 public:
  WriteCall(grpc::CallbackServerContext* context, v1::Upload* response, UploadStore* uploads,
            WorkPool* pool, const UploadMetrics& metrics)
      : context_(context), response_(response), uploads_(uploads), pool_(pool), metrics_(metrics) {
    StartRead(&message_);
  }

  void OnReadDone(bool ok) override {
    if (!ok) {
      End(writer_ == nullptr ? InvalidField(Reason::kInvalidArgument, "upload_id", "",
                                            "the stream ended before its first message")
                             : absl::OkStatus());
    } else if (!pool_->Post([this] { TakePiece(); })) {
      End(TooBusy(*pool_));
    }
  }
  void OnDone() override { delete this; }

 private:
  void TakePiece() {
    const absl::Status status = Append();
    if (!status.ok()) return End(status);
    StartRead(&message_);
  }
  absl::Status Append() {
    if (writer_ == nullptr) {
      ASSIGN_OR_RETURN(writer_, uploads_->Write(TenantOf(message_.tenant()), message_.upload_id()));
    }
    if (message_.file().empty() && message_.data().empty()) return absl::OkStatus();
    return writer_->Append(message_.file(), message_.offset(), message_.data());
  }
  void End(const absl::Status& status) {
    if (writer_ != nullptr) FillUpload(writer_->state(), response_);
    writer_.reset();  // before the client hears: its next call may write
    metrics_.Ended(status, /*is_finish=*/false);
    Finish(ToGrpcStatus(status, context_));
  }

  grpc::CallbackServerContext* const context_;
  v1::Upload* const response_;
  UploadStore* const uploads_;
  WorkPool* const pool_;
  const UploadMetrics metrics_;
  v1::WriteUploadRequest message_;
  std::unique_ptr<UploadStore::Writer> writer_;
};

}  // namespace

// Thread-safe.
class UploadsService::Service : public v1::Uploads::CallbackService {
 public:
  Service(UploadStore* uploads, Registry* registry, Engine* engine, ModelSpec model, WorkPool* pool,
          WorkPool* registrations, UploadMetrics metrics)
      : uploads_(uploads),
        registry_(registry),
        engine_(engine),
        model_(std::move(model)),
        pool_(pool),
        registrations_(registrations),
        metrics_(metrics) {}

  grpc::ServerUnaryReactor* Start(grpc::CallbackServerContext* context,
                                  const v1::StartUploadRequest* request,
                                  v1::Upload* response) override {
    return RunUnary(context, pool_, [this, request, response] {
      const absl::Status begun = Begin(*request, response);
      metrics_.Ended(begun, /*is_finish=*/false);
      return begun;
    });
  }

  grpc::ServerUnaryReactor* Get(grpc::CallbackServerContext* context,
                                const v1::GetUploadRequest* request,
                                v1::Upload* response) override {
    return RunUnary(context, pool_, [this, request, response]() -> absl::Status {
      ASSIGN_OR_RETURN(const UploadState state,
                       uploads_->Get(TenantOf(request->tenant()), request->upload_id()));
      FillUpload(state, response);
      return absl::OkStatus();
    });
  }

  grpc::ServerReadReactor<v1::WriteUploadRequest>* Write(grpc::CallbackServerContext* context,
                                                         v1::Upload* response) override {
    return new WriteCall(context, response, uploads_, pool_, metrics_);
  }

  grpc::ServerUnaryReactor* Finish(grpc::CallbackServerContext* context,
                                   const v1::FinishUploadRequest* request,
                                   v1::RegisterResponse* response) override {
    return RunUnary(context, registrations_, [this, request, response] {
      const std::string tenant = TenantOf(request->tenant());
      const absl::Status finished = uploads_->Finish(
          tenant, request->upload_id(), [&](const std::filesystem::path& dir) -> absl::Status {
            ASSIGN_OR_RETURN(
                const AdapterEntry entry,
                registry_->RegisterDirectory(request->name(), dir, tenant, request->new_version()));
            finished_.Add(tenant, request->upload_id(), request->name(), entry.version);
            return Fill(entry, response);
          });
      if (absl::IsNotFound(finished) && TellAgain(tenant, *request, response)) {
        return absl::OkStatus();
      }
      metrics_.Ended(finished, /*is_finish=*/true);
      return finished;
    });
  }

  grpc::ServerUnaryReactor* Abort(grpc::CallbackServerContext* context,
                                  const v1::AbortUploadRequest* request,
                                  v1::AbortUploadResponse*) override {
    return RunUnary(context, pool_, [this, request] {
      return uploads_->Abort(TenantOf(request->tenant()), request->upload_id());
    });
  }

 private:
  absl::Status Fill(const AdapterEntry& entry, v1::RegisterResponse* response) {
    return AdapterMessages(engine_->Status(), model_)
        .Fill(entry, registry_->FindDigest(entry.digest), response->mutable_adapter());
  }

  // Whether it was finished before, and what came of it is still there.
  bool TellAgain(const std::string& tenant, const v1::FinishUploadRequest& request,
                 v1::RegisterResponse* response) {
    const auto version = finished_.Find(tenant, request.upload_id(), request.name());
    if (!version) return false;
    const auto entry = registry_->Get(request.name(), tenant, *version);
    return entry.ok() && Fill(*entry, response).ok();
  }

  absl::Status Begin(const v1::StartUploadRequest& request, v1::Upload* response) {
    const std::string tenant = TenantOf(request.tenant());
    RETURN_IF_ERROR(CheckTenant(tenant));
    ASSIGN_OR_RETURN(std::vector<UploadFile> files, FilesOf(request));
    ASSIGN_OR_RETURN(const UploadState state, uploads_->Start(tenant, std::move(files)));
    FillUpload(state, response);
    return absl::OkStatus();
  }

  UploadStore* const uploads_;
  Registry* const registry_;
  Engine* const engine_;
  const ModelSpec model_;
  WorkPool* const pool_;
  WorkPool* const registrations_;
  const UploadMetrics metrics_;
  FinishedUploads finished_;
};

UploadsService::UploadsService(UploadStore* uploads, Registry* registry, Engine* engine,
                               ModelSpec model, WorkPool* pool, WorkPool* registrations,
                               UploadMetrics metrics)
    : service_(std::make_unique<Service>(uploads, registry, engine, std::move(model), pool,
                                         registrations, metrics)) {}
UploadsService::~UploadsService() = default;
grpc::Service* UploadsService::service() { return service_.get(); }

}  // namespace rootstock
