// What gRPC and protobuf have to say goes into our log instead of raw lines on stderr.
#pragma once

namespace rootstock {

// Their errors and warnings become warnings: a peer's broken bytes are no fault of this process;
// failed assertions, after which the process ends, are errors. The rest shows at debug, gRPC's
// where GRPC_VERBOSITY asks for it. Once, after InitLogging and before anything else of either
// library.
void RouteLibraryLogs();

}  // namespace rootstock
