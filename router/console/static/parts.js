// Pieces that several pages have: headings, tiles, tables, labels.

import { h } from "./dom.js";
import { words } from "./format.js";

export function heading(title, text = "") {
  return h("div", { class: "heading" }, h("h1", {}, title), text ? h("p", { class: "lead" }, text) : null);
}

// What a page of pools shows to a key that may use no model.
export function noPool() {
  return h("p", { class: "empty" }, "This key may see no pool.");
}

export function section(title, ...content) {
  return h("section", { class: "panel", "aria-label": title }, h("h2", {}, title), content);
}

// One figure: name, value, what it is compared with, and a chart.
export function tile(name, value, { note = "", state = "", chart = null } = {}) {
  return h(
    "div",
    { class: `tile ${state}`, role: "group", "aria-label": name },
    h("p", { class: "name" }, name),
    h("p", { class: "value" }, value),
    h("p", { class: "note" }, note),
    chart,
  );
}

// A table. Columns are [title, function of a row, {end: whether it is a number, wide}]; rows may have keys.
export function table(caption, columns, rows, { key = null, empty = "Nothing yet.", row = null } = {}) {
  if (!rows.length) return h("p", { class: "empty" }, empty);
  const cells = (each) => columns.map(([title, cell, how = {}], index) => {
    const attributes = { class: how.end ? "end" : how.wide ? "wide" : null, "data-title": title };
    return index ? h("td", attributes, cell(each)) : h("th", { ...attributes, scope: "row" }, cell(each));
  });
  return h(
    "div",
    { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h(
      "table",
      {},
      h("caption", {}, caption),
      h("thead", {}, h("tr", {}, columns.map(([title, , how = {}]) => h("th", { scope: "col", class: how.end ? "end" : null }, title)))),
      h("tbody", {}, rows.map((each) => h("tr", { "data-key": key ? key(each) : null, ...(row ? row(each) : {}) }, cells(each)))),
    ),
  );
}

// A word with a colour. The word alone says it too.
export function badge(word, state = "") {
  return h("span", { class: `badge ${state}` }, words(word));
}

export function outcome(word) {
  if (!word) return badge("not judged");
  return word === "met" ? badge("met", "good") : badge(word === "not_served" ? "not served" : `missed ${words(word).toUpperCase().replace(" AND ", " and ")}`, "bad");
}

export function field(label, control, id, hint = "") {
  control.id = id;
  return h("div", { class: "field" }, h("label", { for: id }, label), control, hint ? h("p", { class: "hint" }, hint) : null);
}

export function choose(options, chosen, onchange) {
  return h("select", { onchange }, options.map(([value, text]) => h("option", { value, selected: value === chosen }, text)));
}

// Terms and what they are, as pairs.
export function facts(pairs) {
  return h("dl", { class: "facts" }, pairs.filter(([, value]) => value !== null && value !== "").map(([name, value]) => h("div", {}, h("dt", {}, name), h("dd", {}, value))));
}
