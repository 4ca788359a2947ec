// What is said of an adapter that was just registered.
#pragma once

#include "coordinator/ctl/client.h"
#include "rootstock/v1/adapters.pb.h"

namespace rootstock {

// With --json the message, else a line and the receipt's warnings.
void PrintRegistered(const ClientOptions& options, const v1::Adapter& adapter);

}  // namespace rootstock
