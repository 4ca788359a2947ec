// The contract structs of common/plan to and from the messages of group.proto.
// ToProto overwrites its target. FromProto checks sizes and closed lists, errors name the field:
// INVALID_ARGUMENT/invalid_argument `command.step.rows[3].tokens=2: …`.
#pragma once

#include "absl/status/statusor.h"
#include "common/plan/plan.h"

namespace rootstock {

namespace v1 {
class AttachOrder;
class AttachReport;
class Command;
class Completion;
class Hello;
class Outcome;
}  // namespace v1

// What the coordinator sends first on a stream.
struct AttachOrder {
  Epoch epoch;
  GroupLimits limits;
};

void ToProto(const Command& in, v1::Command* out);
absl::StatusOr<Command> FromProto(const v1::Command& in);

void ToProto(const Completion& in, v1::Completion* out);
absl::StatusOr<Completion> FromProto(const v1::Completion& in);

// Code, message and error detail survive; other payloads do not.
void ToProto(const absl::Status& in, v1::Outcome* out);
absl::Status StatusFromProto(const v1::Outcome& in);

void ToProto(const GroupInfo& in, v1::Hello* out);
absl::StatusOr<GroupInfo> FromProto(const v1::Hello& in);

void ToProto(const AttachOrder& in, v1::AttachOrder* out);
absl::StatusOr<AttachOrder> FromProto(const v1::AttachOrder& in);

void ToProto(const AttachReport& in, v1::AttachReport* out);
absl::StatusOr<AttachReport> FromProto(const v1::AttachReport& in);

// Digests travel as their 32 bytes.
std::string DigestToBytes(const Digest& digest);
absl::StatusOr<Digest> DigestFromBytes(const std::string& bytes, const std::string& field);

}  // namespace rootstock
