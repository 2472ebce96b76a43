// Tenants, keys, adapters and aliases: what is there, what changed, and for those who may, changes.

import { read, send } from "../api.js";
import { may } from "../caller.js";
import { h } from "../dom.js";
import { moment } from "../format.js";
import { badge, choose, field, heading, section, table } from "../parts.js";

const KINDS = [["", "all"], ["tenant", "tenants"], ["key", "keys"], ["adapter", "adapters"], ["alias", "aliases"]];
const ROLES = ["user", "tenant_operator", "operator", "admin"];

export const registry = {
  name: "registry",
  title: "Registry",
  role: "tenant_operator",
  every: 5000,
  async load({ query }) {
    const kind = KINDS.some(([value]) => value === query.kind) ? query.kind : "";
    const [{ entries }, { changes }] = await Promise.all([read("/api/registry", { kind }), read("/api/registry/history", { kind })]);
    return { kind, entries, changes };
  },
  draw({ kind, entries, changes }, { query, redraw, fail, caller }) {
    const chosen = entries.find((each) => each.kind === query.edit && each.name === query.name);
    const filter = choose(KINDS, kind, (event) => (location.hash = address({ kind: event.target.value })));
    // An operator of the cluster only reads.
    const admin = may(caller, "admin");
    const keys = admin || caller?.role === "tenant_operator";
    const change = async (event, path, body, done) => {
      event.preventDefault();
      try {
        done(await send(path, body));
        redraw();
      } catch (error) {
        fail(error);
      }
    };
    return [
      heading("Registry", "What changes while the cluster runs. Entries of the settings come back when one that replaces them is deleted."),
      h("div", { class: "filters" }, field("Kind", filter, "registry-kind")),
      list(entries, kind, chosen, admin, keys),
      chosen ? section(`Change ${chosen.kind} ${chosen.name}`, changing(chosen, kind, change, fail)) : null,
      keys ? section("New key", newKey(admin, change)) : null,
      admin ? section("New entry", h("details", { "data-key": "new-entry" }, h("summary", {}, "Tenant, adapter or alias"), making(change, fail))) : null,
      history(changes),
    ].filter(Boolean);
  },
};

function address(query) {
  return `#/registry?${new URLSearchParams(Object.entries(query).filter(([, value]) => value))}`;
}

function list(entries, kind, chosen, admin, keys) {
  const allowed = (each) => !each.fixed && (admin || (keys && each.kind === "key"));
  const name = (each) =>
    allowed(each) ? h("a", { href: address({ kind, edit: each.kind, name: each.name }), "aria-current": each === chosen ? "true" : null }, each.name) : each.name;
  return section(
    "Entries",
    table(
      "By kind and name",
      [
        ["name", name],
        ["kind", (each) => each.kind],
        ["content", (each) => content(each.value), { wide: true }],
        ["from", (each) => (each.fixed ? badge("settings, fixed") : each.version ? `version ${each.version}` : "settings")],
        ["changed", (each) => (each.changed_at ? moment(Date.parse(each.changed_at)) : "–")],
        ["replicas", (each) => each.replicas.map((one) => badge(`${one.replica}: ${one.state}`, one.state === "loaded" ? "good" : one.state === "failed" ? "bad" : "info"))],
      ],
      entries,
      { key: (each) => `${each.kind}-${each.name}`, empty: "No entries." },
    ),
  );
}

function content(value) {
  return Object.entries(value ?? {}).map(([name, each]) => `${name} = ${JSON.stringify(each)}`).join(", ");
}

// A form that keeps what is typed while the page is drawn again. Another version of the entry is another form.
function changing(entry, kind, change, fail) {
  const value = h("textarea", { name: "value", rows: 8, spellcheck: "false" }, JSON.stringify(entry.value, null, 2));
  const ends = h("input", { name: "ends", type: "checkbox" });
  const close = () => (location.hash = address({ kind }));
  const edit = (form, wanted) => ({ kind: entry.kind, name: entry.name, value: wanted, version: entry.version, end_streams: entry.kind === "key" && form.elements.ends.checked });
  const save = (event) => {
    const wanted = parsed(event, event.target.elements.value.value, fail);
    if (wanted) change(event, "/api/registry", edit(event.target, wanted), close);
  };
  const drop = (event) => {
    if (confirm(`Delete ${entry.kind} ${entry.name}?`)) change(event, "/api/registry", edit(event.target.form, null), close);
  };
  return h(
    "form",
    { "data-own": true, "data-key": `change-${entry.kind}-${entry.name}-${entry.version}`, class: "grid", onsubmit: save },
    h("div", { class: "wide" }, field("Content, as JSON", value, "registry-value", "The fields of the settings of this kind.")),
    entry.kind === "key" ? h("div", { class: "wide" }, field("End what it has begun, too", ends, "registry-ends", "Open streams, jobs and responses in the background end.")) : null,
    h(
      "p",
      { class: "buttons wide" },
      h("button", { type: "submit" }, "Save"),
      " ",
      entry.version ? h("button", { type: "button", class: "quiet", onclick: drop }, "Delete") : null,
      " ",
      h("button", { type: "button", class: "quiet", onclick: close }, "Close"),
    ),
  );
}

function making(change, fail) {
  const save = (event) => {
    const { kind, name, value } = event.target.elements;
    const wanted = parsed(event, value.value, fail);
    if (wanted) change(event, "/api/registry", { kind: kind.value, name: name.value, value: wanted, version: 0 }, () => event.target.reset());
  };
  const kinds = h("select", { name: "kind" }, KINDS.filter(([each]) => each && each !== "key").map(([each]) => h("option", { value: each }, each)));
  return h(
    "form",
    { "data-own": true, class: "grid", onsubmit: save },
    field("Kind of the new entry", kinds, "registry-new-kind"),
    field("Name", h("input", { name: "name", required: true, autocomplete: "off" }), "registry-new-name"),
    h("div", { class: "wide" }, field("Content of the new entry, as JSON", h("textarea", { name: "value", rows: 4, spellcheck: "false" }, "{}"), "registry-new-value")),
    h("p", { class: "buttons wide" }, h("button", { type: "submit" }, "Make")),
  );
}

function newKey(admin, change) {
  const made = h("p", { class: "wide", role: "status" });
  const make = (event) => {
    const { tenant, role, days } = event.target.elements;
    const body = { tenant: tenant.value, role: role.value, days: days.value === "" ? null : Number(days.value) };
    change(event, "/api/registry/keys", body, (found) => made.replaceChildren("Shown only here: ", h("code", {}, found.key)));
  };
  const roles = admin ? ROLES : ROLES.slice(0, 2);
  return h(
    "form",
    { "data-own": true, "data-key": "new-key", class: "grid", onsubmit: make },
    field("Tenant", h("input", { name: "tenant", required: admin, autocomplete: "off", placeholder: admin ? null : "your own" }), "registry-tenant"),
    field("Role", h("select", { name: "role" }, roles.map((each) => h("option", { value: each }, each))), "registry-role"),
    field("Expires in days", h("input", { name: "days", type: "number", min: "0", step: "any", inputmode: "decimal", value: "90" }), "registry-days"),
    h("p", { class: "buttons wide" }, h("button", { type: "submit" }, "Make a key")),
    made,
  );
}

function history(changes) {
  const who = (each) => (each.tenant ? `${each.tenant}${each.credential ? ` (${each.credential})` : ""}` : "not your tenant");
  return section(
    "History",
    changes.every((each) => each.intact) ? null : h("p", { class: "worries" }, "A line was changed in Redis afterwards."),
    table(
      "Newest first",
      [
        ["number", (each) => each.number],
        ["time", (each) => moment(Date.parse(each.at))],
        ["who", who],
        ["entry", (each) => `${each.difference.kind} ${each.difference.name}`],
        ["before", (each) => (each.difference.before ? content(each.difference.before) || "{}" : "–"), { wide: true }],
        ["after", (each) => (each.difference.after ? content(each.difference.after) || "{}" : "–"), { wide: true }],
      ],
      changes,
      { key: (each) => `change-${each.number}`, empty: "No changes." },
    ),
  );
}

// The object in a text; null, with the error shown, where there is none.
function parsed(event, text, fail) {
  event.preventDefault();
  try {
    const value = JSON.parse(text);
    if (value && typeof value === "object" && !Array.isArray(value)) return value;
    fail({ status: 400, message: "the content must be a JSON object" });
  } catch (error) {
    fail({ status: 400, message: `the content is no JSON: ${error.message}` });
  }
  return null;
}
