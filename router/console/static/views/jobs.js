// Jobs of the caller's tenant, with their progress.

import { read } from "../api.js";
import { meter } from "../charts.js";
import { count, moment, money, percent, seconds, short } from "../format.js";
import { h } from "../dom.js";
import { badge, heading, section, table } from "../parts.js";

const STATES = { succeeded: "good", running: "info", failed: "bad", expired: "bad", cancelled: "warn" };

export const jobs = {
  name: "jobs",
  title: "Jobs",
  every: 2000,
  load: () => read("/api/jobs"),
  draw: (page) => [
    heading("Jobs", "Files of requests that run in the background. Each tenant sees its own."),
    section(
      "Jobs",
      table(
        "Newest first",
        [
          ["job", (each) => h("code", {}, each.job_id)],
          ["model", (each) => each.model],
          ["state", (each) => badge(each.state, STATES[each.state])],
          ["progress", progress, { wide: true }],
          ["failed items", (each) => count(each.failed_items), { end: true }],
          ["took", (each) => (each.started_at === null ? "–" : seconds((each.ended_at ?? Date.now() / 1000) - each.started_at)), { end: true }],
          ["output tokens", (each) => short(each.usage.output_tokens), { end: true }],
          ["cost", (each) => money(each.usage.cost), { end: true }],
          ["created", (each) => moment(each.created_at * 1000)],
        ],
        page.jobs,
        { key: (each) => each.job_id, empty: "This tenant has no job." },
      ),
    ),
  ],
};

function progress(job) {
  const done = job.succeeded_items + job.failed_items;
  const part = job.items ? done / job.items : 0;
  return h("div", { class: "bar" }, h("span", {}, `${count(done)} of ${count(job.items)}`), h("span", { class: "end" }, percent(part)), meter(part, { label: `${percent(part)} done`, state: job.failed_items ? "warn" : "good" }), job.failure ? h("span", { class: "note" }, job.failure) : null);
}
