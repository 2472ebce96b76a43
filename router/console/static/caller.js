// Who looks at the page, as the routers say: tenant, role, and what the key may use.

import { readKept } from "./api.js";

const ROLES = ["user", "tenant_operator", "operator", "admin"];

// null where the routers do not say it: without a valid key, or where they are of an older release.
export async function whoCalls() {
  try {
    return await readKept(60, "/api/whoami");
  } catch {
    return null;
  }
}

// Whether a caller has a role. One that is not known may try.
export function may(caller, role) {
  return !caller || !role || ROLES.indexOf(caller.role) >= ROLES.indexOf(role);
}

export function introduce(caller) {
  if (!caller) return "";
  const until = caller.expires_at ? ` It expires ${new Date(caller.expires_at).toLocaleString("en-GB", { dateStyle: "medium", timeStyle: "short" })}.` : "";
  const kind = caller.credential_kind.replace("api_key", "API key");
  const name = caller.credential_name ? `, ${kind} ${caller.credential_name}` : "";
  return `You are tenant ${caller.tenant}, role ${caller.role}${name}.${until}`;
}
