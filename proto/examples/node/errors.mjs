// Reads what a router says about an error: the google.rpc.Status in the trailer grpc-status-details-bin.

import path from "node:path";

import protobuf from "protobufjs";

const rpc = protobuf.loadSync(path.join(import.meta.dirname, "google_rpc.proto"));
const { Status, ErrorInfo, BadRequest, RetryInfo } = rpc.lookup("google.rpc");

/**
 * Returns {reason, metadata, violations, retryAfterMs} of a ServiceError. `reason` is empty where no router answered.
 * `retryAfterMs` is undefined where the router gave no time to come back.
 */
export function details(error) {
  const found = { reason: "", metadata: {}, violations: [], retryAfterMs: undefined };
  const [bytes] = error.metadata?.get("grpc-status-details-bin") ?? [];
  if (!bytes) return found;
  for (const { type_url: url, value } of Status.decode(bytes).details) {
    if (url.endsWith("google.rpc.ErrorInfo")) {
      const { reason, metadata } = ErrorInfo.decode(value);
      Object.assign(found, { reason, metadata });
    } else if (url.endsWith("google.rpc.BadRequest")) {
      found.violations = BadRequest.decode(value).fieldViolations;
    } else if (url.endsWith("google.rpc.RetryInfo")) {
      const { seconds, nanos } = RetryInfo.decode(value).retryDelay;
      found.retryAfterMs = Number(seconds) * 1000 + nanos / 1e6;
    }
  }
  return found;
}
