// Messages of inference.proto to and from coordinator/request.
#pragma once

#include <vector>

#include "absl/status/statusor.h"
#include "coordinator/frontend/frontend.h"
#include "coordinator/request/generate.h"

namespace rootstock {

namespace v1 {
class Accepted;
class Delta;
class GenerateRequest;
class PromptLogprobs;
}  // namespace v1

// Values are checked by the engine; here only that there is a prompt. Draws a request id when
// there is none.
absl::StatusOr<GenerateRequest> FromProto(const v1::GenerateRequest& in);

void ToProto(const GenerateAccepted& in, v1::Accepted* out);
// Texts of logprobs come from `frontend`.
void ToProto(const GenerateDelta& in, bool with_ids, const Frontend& frontend, v1::Delta* out);
void ToProto(const std::vector<TokenLogprob>& in, const Frontend& frontend,
             v1::PromptLogprobs* out);

}  // namespace rootstock
