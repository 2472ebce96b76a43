// Elements from values. Text is always text: nothing here reads HTML, so what a model or a tenant wrote can't run.

const SVG = "http://www.w3.org/2000/svg";
const HANDLERS = ["onclick", "onchange", "oninput", "onsubmit", "onkeydown"];

// An HTML element. Attributes that are null, undefined or false are left out; functions are handlers.
export function h(tag, attributes, ...children) {
  return fill(document.createElement(tag), attributes, children);
}

// An SVG element, as above.
export function s(tag, attributes, ...children) {
  return fill(document.createElementNS(SVG, tag), attributes, children);
}

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  add(node, children);
  return node;
}

function add(node, children) {
  for (const child of children) {
    if (Array.isArray(child)) add(node, child);
    else if (child !== null && child !== undefined && child !== false) node.append(child);
  }
}

// Make a tree like another one, and keep its elements, so that focus, selection and open details stay. Children with
// the attribute data-key are the same element wherever they are; elements with data-own look after their own content.
export function patch(current, next) {
  for (const { name, value } of [...next.attributes]) {
    if (current.getAttribute(name) !== value) current.setAttribute(name, value);
  }
  for (const { name } of [...current.attributes]) {
    if (!next.hasAttribute(name) && name !== "open") current.removeAttribute(name);
  }
  for (const name of HANDLERS) if (current[name] !== next[name]) current[name] = next[name];
  if (current.hasAttribute("data-own")) return;
  patchChildren(current, [...next.childNodes]);
}

export function patchChildren(parent, nodes) {
  const keyed = new Map();
  for (const child of parent.children) if (child.dataset.key) keyed.set(child.dataset.key, child);
  let here = parent.firstChild;
  for (const next of nodes) {
    const key = next.nodeType === Node.ELEMENT_NODE ? next.dataset.key : undefined;
    const old = key ? keyed.get(key) : here;
    if (old && same(old, next)) {
      if (old === here) here = here.nextSibling;
      else parent.insertBefore(old, here);
      if (next.nodeType === Node.ELEMENT_NODE) patch(old, next);
      else if (old.data !== next.data) old.data = next.data;
    } else {
      parent.insertBefore(next, here);
    }
  }
  while (here) {
    const after = here.nextSibling;
    here.remove();
    here = after;
  }
}

function same(one, other) {
  if (one.nodeName !== other.nodeName) return false;
  return one.nodeType !== Node.ELEMENT_NODE || (one.dataset.key ?? "") === (other.dataset.key ?? "");
}
