// loractl adapter upload: a local PEFT directory, piece by piece.
#include <grpcpp/client_context.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>
#include <optional>
#include <system_error>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/adapter_name.h"
#include "common/base/digest.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/registered.h"
#include "rootstock/v1/uploads.grpc.pb.h"

namespace rootstock {
namespace {

constexpr size_t kPieceBytes = 512 << 10;
constexpr const char* kFiles[] = {"adapter_config.json", "adapter_model.safetensors"};
constexpr std::chrono::milliseconds kUploadPause{200};
constexpr std::chrono::seconds kUploadPatience{60};

// On a terminal, one line that is written over.
class Progress {
 public:
  explicit Progress(uint64_t total) : total_(total), shown_(isatty(STDERR_FILENO) == 1) {}
  ~Progress() {
    if (percent_ >= 0) std::fputc('\n', stderr);
  }
  void At(uint64_t done) {
    const int percent = static_cast<int>(100 * done / total_);
    if (!shown_ || percent == percent_) return;
    percent_ = percent;
    std::fprintf(stderr, "\rupload %3d %% of %.1f MB", percent, static_cast<double>(total_) / 1e6);
  }

 private:
  const uint64_t total_;
  const bool shown_;
  int percent_ = -1;
};

// Nothing, and a line on stderr, for a file that can't be read.
std::optional<v1::UploadFile> Describe(const std::string& directory, const std::string& name) {
  const std::string path = directory + "/" + name;
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error)) {  // reading a pipe waits for its writer
    std::error_code ignored;
    const bool pickled = std::filesystem::exists(directory + "/adapter_model.bin", ignored);
    std::fprintf(
        stderr, "loractl: path=%s: can't be read: %s%s\n", path.c_str(),
        error ? error.message().c_str() : "no regular file",
        name == kFiles[1] && pickled ? "; adapter_model.bin, pickled weights, is not read" : "");
    return std::nullopt;
  }
  std::ifstream in(path, std::ios::binary);
  v1::UploadFile file;
  Sha256 hash;
  std::string buffer(1 << 20, '\0');
  uint64_t bytes = 0;
  while (in) {
    in.read(buffer.data(), static_cast<std::streamsize>(buffer.size()));
    const auto n = static_cast<size_t>(in.gcount());
    hash.Update(std::span(reinterpret_cast<const uint8_t*>(buffer.data()), n));
    bytes += n;
  }
  if (!in.eof()) {
    std::fprintf(stderr, "loractl: path=%s: can't be read\n", path.c_str());
    return std::nullopt;
  }
  const Digest digest = hash.Finish();
  file.set_name(name);
  file.set_bytes(bytes);
  file.set_sha256(digest.bytes.data(), digest.bytes.size());
  return file;
}

// Sends what has not been received; false when the stream or the file ended early.
bool SendFile(grpc::ClientWriter<v1::WriteUploadRequest>& stream, v1::WriteUploadRequest& message,
              const std::string& path, const v1::UploadFile& file, uint64_t& done,
              Progress& progress) {
  std::ifstream in(path, std::ios::binary);
  in.seekg(static_cast<std::streamoff>(file.received()));
  message.set_file(file.name());
  for (uint64_t at = file.received(); at < file.bytes();) {
    std::string* data = message.mutable_data();
    data->resize(std::min<uint64_t>(kPieceBytes, file.bytes() - at));
    if (!in.read(data->data(), static_cast<std::streamsize>(data->size()))) return false;
    message.set_offset(at);
    if (!stream.Write(message)) return false;
    message.clear_upload_id();
    message.clear_tenant();
    at += data->size();
    done += data->size();
    progress.At(done);
  }
  return true;
}

// Exit code of the Write; `context` is its own.
grpc::Status SendAll(v1::Uploads::Stub& stub, grpc::ClientContext& context,
                     const std::string& tenant, const std::string& directory,
                     const v1::Upload& upload) {
  uint64_t total = 0;
  uint64_t done = 0;
  for (const v1::UploadFile& file : upload.files()) {
    total += file.bytes();
    done += file.received();
  }
  if (done > 0) {
    std::fprintf(stderr, "going on with an upload that has %llu of %llu bytes\n",
                 static_cast<unsigned long long>(done), static_cast<unsigned long long>(total));
  }
  if (done == total) return grpc::Status::OK;
  v1::Upload written;
  const auto stream = stub.Write(&context, &written);
  v1::WriteUploadRequest message;
  message.set_upload_id(upload.upload_id());
  message.set_tenant(tenant);
  {
    Progress progress(total);
    for (const v1::UploadFile& file : upload.files()) {
      if (!SendFile(*stream, message, directory + "/" + file.name(), file, done, progress)) break;
    }
  }
  stream->WritesDone();
  return stream->Finish();
}

// Of one that is there still, after an error.
void TellWhatStays(v1::Uploads::Stub& stub, const ClientOptions& options, const std::string& id) {
  v1::GetUploadRequest request;
  request.set_tenant(options.tenant);
  request.set_upload_id(id);
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::Upload upload;
  if (!stub.Get(&context, request, &upload).ok()) return;
  std::fprintf(stderr,
               "what came stays for a day: the same command goes on with it, "
               "adapter abort-upload %s gives it up\n",
               id.c_str());
}

std::chrono::steady_clock::time_point WaitsUntil(const ClientOptions& options) {
  std::chrono::duration<double> patience = kUploadPatience;
  if (options.timeout_seconds > 0) {
    patience = std::min(patience, std::chrono::duration<double>(options.timeout_seconds));
  }
  return std::chrono::steady_clock::now() +
         std::chrono::duration_cast<std::chrono::steady_clock::duration>(patience);
}

// What the last call said.
struct UploadTry {
  grpc::Status status;
  std::unique_ptr<grpc::ClientContext> context;
  v1::RegisterResponse response;
};

// From Start to Finish; `finish` gets the upload's id.
UploadTry TryUpload(v1::Uploads::Stub& stub, const ClientOptions& options,
                    const v1::StartUploadRequest& start, const std::string& directory,
                    v1::FinishUploadRequest& finish) {
  UploadTry out;
  const auto next = [&] {
    out.context = std::make_unique<grpc::ClientContext>();
    SetDeadline(options, *out.context);
    return out.context.get();
  };
  v1::Upload upload;
  finish.clear_upload_id();
  out.status = stub.Start(next(), start, &upload);
  if (!out.status.ok()) return out;
  finish.set_upload_id(upload.upload_id());
  out.status = SendAll(stub, *next(), options.tenant, directory, upload);
  if (out.status.ok()) out.status = stub.Finish(next(), finish, &out.response);
  return out;
}

}  // namespace

int AbortUpload(const ClientOptions& options, const std::string& upload_id) {
  v1::AbortUploadRequest request;
  request.set_tenant(options.tenant);
  request.set_upload_id(upload_id);
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::AbortUploadResponse response;
  const grpc::Status status =
      v1::Uploads::NewStub(Connect(options))->Abort(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) PrintJson(response);
  return kExitOk;
}

int UploadAdapter(const ClientOptions& options, const std::string& name,
                  const std::string& directory, bool new_version) {
  if (!IsPlainName(name)) {  // found out before a byte is sent
    std::fprintf(stderr, "loractl: NAME=%s: must match %s\n", name.c_str(), kNamePattern);
    return kExitUsage;
  }
  v1::StartUploadRequest start;
  start.set_tenant(options.tenant);
  for (const char* file : kFiles) {
    std::optional<v1::UploadFile> described = Describe(directory, file);
    if (!described) return kExitUsage;
    *start.add_files() = *std::move(described);
  }
  const auto stub = v1::Uploads::NewStub(Connect(options));
  v1::FinishUploadRequest finish;
  finish.set_tenant(options.tenant);
  finish.set_name(name);
  finish.set_new_version(new_version);
  const auto until = WaitsUntil(options);
  UploadTry last = TryUpload(*stub, options, start, directory, finish);
  // An earlier call whose client has gone comes to its end first.
  for (bool told = false; last.status.error_code() == grpc::StatusCode::ABORTED &&
                          std::chrono::steady_clock::now() + kUploadPause < until;) {
    if (!std::exchange(told, true)) {
      std::fputs("loractl: another call works on this upload: waiting for its end\n", stderr);
    }
    std::this_thread::sleep_for(kUploadPause);
    last = TryUpload(*stub, options, start, directory, finish);
  }
  if (!last.status.ok()) {
    const int code = Fail(options, last.status, *last.context);
    if (!finish.upload_id().empty()) TellWhatStays(*stub, options, finish.upload_id());
    return code;
  }
  PrintRegistered(options, last.response.adapter());
  return kExitOk;
}

}  // namespace rootstock
