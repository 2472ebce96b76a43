// The pages, in the order of the navigation.

import { may } from "./caller.js";
import { ahead } from "./views/ahead.js";
import { autoscaler } from "./views/autoscaler.js";
import { jobs } from "./views/jobs.js";
import { line } from "./views/line.js";
import { models } from "./views/models.js";
import { overview } from "./views/overview.js";
import { plan } from "./views/plan.js";
import { playground } from "./views/playground.js";
import { registry } from "./views/registry.js";
import { replicas } from "./views/replicas.js";
import { request } from "./views/requests/request.js";
import { requests } from "./views/requests/requests.js";
import { usage } from "./views/usage.js";

export const PAGES = [overview, replicas, line, requests, request, autoscaler, ahead, jobs, usage, models, registry, playground, plan];

// The page of an address; that of an empty one is the first that the caller may see.
export function pageOf(name, rest, caller) {
  const first = PAGES.find((page) => may(caller, page.role));
  return PAGES.find((page) => page.name === name && Boolean(page.hidden) === rest.length > 0) ?? first;
}
