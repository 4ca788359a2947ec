#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "common/base/adapter_ref.h"
#include "coordinator/ctl/commands.h"
#include "coordinator/ctl/registered.h"
#include "rootstock/v1/adapters.grpc.pb.h"

namespace rootstock {
namespace {

// Of an Adapter or an AdapterSummary.
template <typename Message>
std::string Places(const Message& adapter) {
  std::string out;
  for (const v1::Residency& place : adapter.residency()) {
    const std::string size = place.pages() > 0 ? absl::StrCat(place.pages(), " pages")
                                               : absl::StrCat(place.bytes(), " bytes");
    absl::StrAppend(&out, out.empty() ? "" : ", ", place.tier(), " of ", place.group(), " (", size,
                    place.sharding().empty() ? "" : ", ", place.sharding(), ")");
  }
  return out.empty() ? "in no group" : out;
}

// The fastest place that holds it anywhere: beside the groups' the coordinator's disk or its store.
std::string TierOf(const v1::AdapterSummary& adapter) {
  for (const char* tier : {"device", "host", "disk"}) {
    for (const v1::Residency& place : adapter.residency()) {
      if (place.tier() == tier) return tier;
    }
  }
  return adapter.stored_in().empty() ? "lost" : adapter.stored_in();
}

std::string Time(int64_t unix_ms) {
  if (unix_ms == 0) return "never";
  return absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixMillis(unix_ms), absl::UTCTimeZone());
}

// "-" for none; groups, or "*" for all.
template <typename List>
std::string Joined(const List& words) {
  return words.empty() ? "-" : absl::StrJoin(words, ",");
}

template <typename Message>
std::string NameOf(const Message& adapter) {
  return AdapterRef{adapter.name(), adapter.version()}.Text();
}

template <typename Response>
std::string Freed(const Response& response) {
  return absl::StrCat(response.device_bytes(), " bytes of devices, ", response.host_bytes(),
                      " of hosts, ", response.disk_bytes(), " of disks");
}

void PrintReceipt(const v1::Adapter& adapter) {
  const v1::Receipt& receipt = adapter.receipt();
  std::printf("adapter   %s, %s%s\ndigest    %s\n", NameOf(adapter).c_str(),
              adapter.state().c_str(), adapter.newest() ? ", the newest" : "",
              adapter.digest().c_str());
  std::printf("aliases   %s\npins      %s\n", Joined(adapter.aliases()).c_str(),
              Joined(adapter.pins()).c_str());
  std::printf("added     %s, last used %s\n", Time(adapter.registered_unix_ms()).c_str(),
              Time(adapter.last_used_unix_ms()).c_str());
  std::printf("file      %s, largest rounding %.3g, %llu bytes stored\n",
              receipt.file_dtype().c_str(), receipt.max_rounding(),
              static_cast<unsigned long long>(receipt.blob_bytes()));
  std::printf("base      %s\n", receipt.base_model_name().c_str());
  if (!receipt.base_name_warning().empty()) {
    std::printf("warning   %s\n", receipt.base_name_warning().c_str());
  }
  for (const v1::GroupPages& pages : receipt.pages()) {
    std::printf("pages     %u of %u bytes on group %s, %s\n", pages.pages(), pages.page_bytes(),
                pages.group().c_str(), pages.sharding().c_str());
  }
  std::printf("resident  %s\n", Places(adapter).c_str());
  std::printf("stored    %s\n", adapter.stored_in().empty() ? "lost" : adapter.stored_in().c_str());
  for (const v1::Residency& place : adapter.residency()) {
    if (place.tp_rank_bytes().empty()) continue;
    std::printf("bytes     %s by tp_rank of %s\n",
                absl::StrJoin(place.tp_rank_bytes(), ", ").c_str(), place.group().c_str());
  }
  std::vector<std::vector<std::string>> rows = {{"module", "lora_rank", "scale", "|delta|"}};
  for (const v1::ReceiptModule& module : receipt.modules()) {
    rows.push_back({module.module(), absl::StrCat(module.lora_rank()),
                    absl::StrFormat("%g", module.scale()),
                    absl::StrFormat("%.5g", module.delta_frobenius())});
  }
  PrintTable(rows);
}

std::unique_ptr<v1::Adapters::Stub> Stub(const ClientOptions& options) {
  return v1::Adapters::NewStub(Connect(options));
}

}  // namespace

void PrintRegistered(const ClientOptions& options, const v1::Adapter& adapter) {
  if (options.json) {
    PrintJson(adapter);
    return;
  }
  const v1::Receipt& receipt = adapter.receipt();
  std::printf("%s registered: %d modules, digest %.12s\n", NameOf(adapter).c_str(),
              receipt.modules_size(), adapter.digest().c_str());
  if (!receipt.base_name_warning().empty()) {
    std::printf("warning: %s\n", receipt.base_name_warning().c_str());
  }
}

int AddAdapter(const ClientOptions& options, const std::string& name, const std::string& path,
               bool new_version) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::RegisterRequest request;
  request.set_name(name);
  request.set_path(path);
  request.set_new_version(new_version);
  request.set_tenant(options.tenant);
  v1::RegisterResponse response;
  const grpc::Status status = Stub(options)->Register(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  PrintRegistered(options, response.adapter());
  return kExitOk;
}

int ShowAdapter(const ClientOptions& options, const AdapterRef& ref) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::GetAdapterRequest request;
  request.set_name(ref.name);
  request.set_version(ref.version);
  request.set_tenant(options.tenant);
  v1::Adapter adapter;
  const grpc::Status status = Stub(options)->Get(&context, request, &adapter);
  if (!status.ok()) return Fail(options, status, context);
  options.json ? PrintJson(adapter) : PrintReceipt(adapter);
  return kExitOk;
}

int ListAdapters(const ClientOptions& options, int32_t page_size, const std::string& page_token) {
  const auto stub = Stub(options);
  v1::ListAdaptersRequest request;
  request.set_tenant(options.tenant);
  request.set_page_size(page_size);
  request.set_page_token(page_token);
  const bool one_page = page_size > 0 || !page_token.empty();
  v1::ListAdaptersResponse all;
  do {
    grpc::ClientContext context;
    SetDeadline(options, context);
    v1::ListAdaptersResponse page;
    const grpc::Status status = stub->List(&context, request, &page);
    if (!status.ok()) return Fail(options, status, context);
    all.MergeFrom(page);
    all.set_next_page_token(page.next_page_token());
    request.set_page_token(page.next_page_token());
  } while (!one_page && !request.page_token().empty());
  if (options.json) {
    PrintJson(all);
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {{"name", "tier", "digest", "state", "lora_ranks",
                                                 "modules", "bytes", "resident", "pins", "aliases",
                                                 "last used"}};
  for (const v1::AdapterSummary& adapter : all.adapters()) {
    rows.push_back({NameOf(adapter), TierOf(adapter), adapter.digest().substr(0, 12),
                    adapter.state(), absl::StrJoin(adapter.lora_ranks(), ","),
                    absl::StrCat(adapter.modules()), absl::StrCat(adapter.blob_bytes()),
                    Places(adapter), Joined(adapter.pins()), Joined(adapter.aliases()),
                    Time(adapter.last_used_unix_ms())});
  }
  PrintTable(rows);
  if (!all.next_page_token().empty()) {
    std::printf("more with --page-token %s\n", all.next_page_token().c_str());
  }
  return kExitOk;
}

int UnloadAdapter(const ClientOptions& options, const AdapterRef& ref) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::UnloadRequest request;
  request.set_name(ref.name);
  request.set_version(ref.version);
  request.set_tenant(options.tenant);
  v1::UnloadResponse response;
  const grpc::Status status = Stub(options)->Unload(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s unloaded, freed: %s\n", ref.Text().c_str(), Freed(response).c_str());
  }
  return kExitOk;
}

int RemoveAdapter(const ClientOptions& options, const AdapterRef& ref) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::UnregisterRequest request;
  request.set_name(ref.name);
  request.set_version(ref.version);
  request.set_tenant(options.tenant);
  v1::UnregisterResponse response;
  const grpc::Status status = Stub(options)->Unregister(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s removed, freed: %s, %llu of the stored blob\n", ref.Text().c_str(),
                Freed(response).c_str(), static_cast<unsigned long long>(response.freed_bytes()));
  }
  return kExitOk;
}

int PinAdapter(const ClientOptions& options, const AdapterRef& ref, const std::string& group,
               bool pinned) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::PinRequest request;
  request.set_name(ref.name);
  request.set_version(ref.version);
  request.set_tenant(options.tenant);
  request.set_group(group);
  v1::PinResponse response;
  const auto stub = Stub(options);
  const grpc::Status status =
      pinned ? stub->Pin(&context, request, &response) : stub->Unpin(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s pinned on: %s\n", AdapterRef{ref.name, response.version()}.Text().c_str(),
                Joined(response.pins()).c_str());
    if (!response.notice().empty()) std::fprintf(stderr, "note: %s\n", response.notice().c_str());
  }
  return kExitOk;
}

}  // namespace rootstock
