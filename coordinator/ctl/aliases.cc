#include <cstdio>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "common/base/status.h"
#include "coordinator/ctl/commands.h"
#include "rootstock/v1/aliases.grpc.pb.h"

namespace rootstock {
namespace {

std::unique_ptr<v1::Aliases::Stub> AliasStub(const ClientOptions& options) {
  return v1::Aliases::NewStub(Connect(options));
}

// "pirate@2" or, of several, "pirate@2=9 pirate@3=1".
std::string Targets(const v1::Alias& alias) {
  if (alias.targets_size() == 0) return "(removed)";
  return absl::StrJoin(alias.targets(), " ", [&](std::string* out, const v1::AliasTarget& target) {
    absl::StrAppend(out, target.name(), "@", target.version());
    if (alias.targets_size() > 1) absl::StrAppend(out, "=", target.weight());
  });
}

std::vector<std::string> Row(const v1::Alias& alias) {
  std::string back;
  if (alias.rolled_back_to() > 0) back = absl::StrCat(" (as ", alias.rolled_back_to(), ")");
  return {alias.name(), absl::StrCat(alias.revision(), back), Targets(alias),
          absl::FormatTime("%Y-%m-%d %H:%M:%SZ", absl::FromUnixMillis(alias.changed_unix_ms()),
                           absl::UTCTimeZone())};
}

const std::vector<std::string> kHead = {"alias", "revision", "stands for", "since"};

int Changed(const ClientOptions& options, const v1::Alias& alias) {
  if (options.json) {
    PrintJson(alias);
  } else {
    std::printf("%s is %s, revision %llu\n", alias.name().c_str(), Targets(alias).c_str(),
                static_cast<unsigned long long>(alias.revision()));
  }
  return kExitOk;
}

}  // namespace

absl::StatusOr<std::vector<v1::AliasTarget>> ParseAliasTargets(const std::string& text) {
  std::vector<v1::AliasTarget> out;
  for (const std::string& part : std::vector<std::string>(absl::StrSplit(text, ','))) {
    const std::pair<std::string, std::string> halves =
        absl::StrSplit(part, absl::MaxSplits('=', 1));
    const auto ref = ParseAdapterRef(halves.first);
    uint32_t weight = 1;
    const bool weighted = part.find('=') != std::string::npos;
    if (!ref || ref->name.empty() ||
        (weighted && (!absl::SimpleAtoi(halves.second, &weight) || weight == 0))) {
      return InvalidField(Reason::kInvalidArgument, "TARGETS", part,
                          "must be NAME, NAME@N, NAME=WEIGHT or NAME@N=WEIGHT, weights from 1");
    }
    v1::AliasTarget& target = out.emplace_back();
    target.set_name(ref->name);
    target.set_version(ref->version);
    target.set_weight(weight);
  }
  return out;
}

int SetAlias(const ClientOptions& options, const std::string& alias,
             const std::vector<v1::AliasTarget>& targets) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::SetAliasRequest request;
  request.set_name(alias);
  request.set_tenant(options.tenant);
  request.mutable_targets()->Assign(targets.begin(), targets.end());
  v1::Alias response;
  const grpc::Status status = AliasStub(options)->Set(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  return Changed(options, response);
}

int ShowAlias(const ClientOptions& options, const std::string& alias) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::GetAliasRequest request;
  request.set_name(alias);
  request.set_tenant(options.tenant);
  v1::AliasWithHistory response;
  const grpc::Status status = AliasStub(options)->Get(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {kHead};
  for (const v1::Alias& revision : response.history()) rows.push_back(Row(revision));
  PrintTable(rows);
  return kExitOk;
}

int ListAliases(const ClientOptions& options) {
  const auto stub = AliasStub(options);
  v1::ListAliasesRequest request;
  request.set_tenant(options.tenant);
  v1::ListAliasesResponse all;
  do {
    grpc::ClientContext context;
    SetDeadline(options, context);
    v1::ListAliasesResponse page;
    const grpc::Status status = stub->List(&context, request, &page);
    if (!status.ok()) return Fail(options, status, context);
    request.set_page_token(page.next_page_token());
    page.clear_next_page_token();
    all.MergeFrom(page);
  } while (!request.page_token().empty());
  if (options.json) {
    PrintJson(all);
    return kExitOk;
  }
  std::vector<std::vector<std::string>> rows = {kHead};
  for (const v1::Alias& alias : all.aliases()) rows.push_back(Row(alias));
  PrintTable(rows);
  return kExitOk;
}

// Names the revision that it undoes: a call that gRPC sends twice undoes one.
int RollbackAlias(const ClientOptions& options, const std::string& alias, uint64_t revision) {
  const auto stub = AliasStub(options);
  v1::GetAliasRequest get;
  get.set_name(alias);
  get.set_tenant(options.tenant);
  get.set_history(1);
  v1::AliasWithHistory now;
  grpc::ClientContext look;
  SetDeadline(options, look);
  const grpc::Status found = stub->Get(&look, get, &now);
  if (!found.ok()) return Fail(options, found, look);
  v1::RollbackAliasRequest request;
  request.set_name(alias);
  request.set_tenant(options.tenant);
  request.set_to_revision(revision);
  request.set_expected_revision(now.alias().revision());
  v1::Alias response;
  grpc::ClientContext context;
  SetDeadline(options, context);
  const grpc::Status status = stub->Rollback(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  return Changed(options, response);
}

int RemoveAlias(const ClientOptions& options, const std::string& alias) {
  grpc::ClientContext context;
  SetDeadline(options, context);
  v1::RemoveAliasRequest request;
  request.set_name(alias);
  request.set_tenant(options.tenant);
  v1::RemoveAliasResponse response;
  const grpc::Status status = AliasStub(options)->Remove(&context, request, &response);
  if (!status.ok()) return Fail(options, status, context);
  if (options.json) {
    PrintJson(response);
  } else {
    std::printf("%s removed\n", alias.c_str());
  }
  return kExitOk;
}

}  // namespace rootstock
