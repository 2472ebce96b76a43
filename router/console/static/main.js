// The frame of the page: navigation, theme, the user's key, and the loop that reads and draws the page that is shown.

import { key, read, useKey } from "./api.js";
import { introduce, may, whoCalls } from "./caller.js";
import { h, patchChildren } from "./dom.js";
import { forget } from "./history.js";
import { PAGES, pageOf } from "./pages.js";

const view = document.getElementById("view");
const problem = document.getElementById("problem");
const live = document.getElementById("live");
const PATIENCE_MS = 1000; // for who calls: a page is shown without it, too
const REFUSED_MS = 30_000; // between calls with a key that was refused: routers count them as wrong keys
const THEMES = ["auto", "light", "dark"];
let shown = null; // what is shown: page, its parameters, and how to end it
let timer = 0;
let caller = null; // who looks at the page; null where that is not known
let refused = false; // whether the routers refused the key at its last call
let about = { version: "", target: "", planner: false };

function address() {
  const [path, query = ""] = location.hash.replace(/^#\/?/, "").split("?");
  const [name, ...rest] = path.split("/");
  return { name: name ?? "", rest: rest.map(decodeURIComponent), query: Object.fromEntries(new URLSearchParams(query)) };
}

function drawNavigation(current) {
  const links = PAGES.filter((page) => !page.hidden && may(caller, page.role) && (page.needs !== "planner" || about.planner)).map((page) =>
    h("li", {}, h("a", { href: `#/${page.name}`, "aria-current": page.name === current ? "page" : null }, page.title)),
  );
  const place = document.getElementById("pages");
  patchChildren(place, [h("ul", {}, links)]);
  place.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" });
}

function open() {
  const { name, rest, query } = address();
  const page = pageOf(name, rest, caller);
  const again = shown && shown.page === page && !page.mount;
  clearTimeout(timer);
  shown?.end?.();
  shown = { page, rest, query, end: null, turn: 0 };
  document.title = `${page.title} – Penstock console`;
  drawNavigation(page.under ?? page.name);
  patchChildren(problem, []);
  if (page.mount) {
    view.replaceChildren();
    live.textContent = "";
    shown.end = page.mount(view, { about, query, fail, caller }) ?? null;
  } else {
    if (!again) view.replaceChildren(h("p", { class: "empty" }, "Loading"));
    turn(shown);
  }
}

// Read and draw what is shown, and again after a while. A hidden page rests.
async function turn(mine) {
  clearTimeout(timer);
  const { page, rest, query } = mine;
  try {
    const data = await page.load({ rest, query });
    if (shown !== mine) return;
    patchChildren(view, [page.draw(data, { rest, query, redraw: () => turn(mine), fail, caller })].flat());
    patchChildren(problem, []);
    mine.pause = page.every;
    mine.at = new Date();
    setRefused(false);
    live.textContent = page.every ? "live" : "";
    live.className = page.every ? "live on" : "live";
  } catch (error) {
    if (shown !== mine) return;
    fail(error, mine.at);
    if (!mine.drawn) patchChildren(view, [view.querySelector(".empty") && h("p", { class: "empty" }, "Nothing to show.")].filter(Boolean));
    live.textContent = page.every ? "not live" : "";
    live.className = "live";
    mine.pause = error.status === 401 ? REFUSED_MS : Math.max(3000, page.every);
  }
  mine.drawn = true;
  if (page.every && !document.hidden) timer = setTimeout(() => turn(mine), mine.pause);
}

// Show an error of a call above the page. `at`: when what is shown was read, where anything is.
function fail(error, at = null) {
  if (error.name === "AbortError") return;
  const more = (error.violations ?? []).map((each) => h("li", {}, `${each.field}: ${each.description}`));
  const denied = error.status === 401 || error.status === 403;
  if (error.status === 401) setRefused(true);
  patchChildren(problem, [
    h(
      "div",
      { class: "problem" },
      h("p", {}, h("strong", {}, error.reason ? `${error.reason}: ` : ""), error.message),
      error.status === 401 && key() ? h("p", {}, caller ? "This API key is no longer accepted." : "This API key is not accepted.") : null,
      at ? h("p", {}, `What is shown is from ${at.toLocaleTimeString("en-GB")}.`) : null,
      more.length ? h("ul", {}, more) : null,
      denied ? h("p", {}, h("button", { type: "button", onclick: askKey }, key() ? "Use another API key" : "Enter an API key")) : null,
    ),
  ]);
  if (!(error.status >= 0)) console.error(error);
}

function askKey() {
  const dialog = document.getElementById("ask");
  document.getElementById("ask-key").value = "";
  document.getElementById("ask-who").textContent = introduce(caller);
  dialog.showModal();
}

function keepKey(event) {
  const given = document.getElementById("ask-key");
  if (event.submitter?.value === "forget") useKey("");
  else if (given.value.trim()) useKey(given.value.trim());
  given.value = "";
  forget();
  begin();
}

function setRefused(now) {
  refused = now;
  showKey();
}

function showKey() {
  const owner = refused ? "not accepted" : caller ? `${caller.tenant} (${caller.role})` : "set";
  document.getElementById("key").textContent = key() ? `API key: ${owner}` : "API key";
}

// Learn who calls, and show the page of the address.
async function begin() {
  caller = null;
  refused = false;
  showKey();
  const asked = whoCalls();
  const known = asked.then((found) => {
    caller = found;
    showKey();
    if (shown) drawNavigation(shown.page.under ?? shown.page.name);
  });
  await Promise.race([known, new Promise((done) => setTimeout(done, PATIENCE_MS))]);
  open();
}

function useTheme(name) {
  document.documentElement.dataset.theme = name;
  document.getElementById("theme").textContent = `Theme: ${name}`;
}

function nextTheme() {
  const name = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem("penstock-theme", name);
  useTheme(name);
}

const saved = localStorage.getItem("penstock-theme");
useTheme(THEMES.includes(saved) ? saved : "auto");
document.getElementById("theme").onclick = nextTheme;
document.getElementById("key").onclick = askKey;
// The address after # names the page.
document.getElementById("skip").onclick = (event) => {
  event.preventDefault();
  document.getElementById("main").focus();
};
document.getElementById("ask-form").onsubmit = keepKey;
window.addEventListener("hashchange", () => {
  open();
  window.scrollTo(0, 0);
  document.getElementById("main").focus({ preventScroll: true });
});
document.addEventListener("visibilitychange", () => {
  if (!document.hidden && shown && !shown.page.mount) turn(shown);
});
begin();
read("/api/about").then((found) => {
  about = found;
  document.getElementById("target").textContent = `${found.target} · ${found.version}`;
  if (shown) drawNavigation(shown.page.under ?? shown.page.name);
}, fail);
