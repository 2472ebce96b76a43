// What a screen reader needs, and colours that can be told apart. Each complaint shows the element.
() => {
  const found = [];
  const short = (node) => node.outerHTML.slice(0, 120);
  const visible = (node) => node.checkVisibility({visibilityProperty: true}) && node.getClientRects().length > 0;
  const ids = new Set();
  for (const node of document.querySelectorAll("[id]")) {
    if (ids.has(node.id)) found.push(`twice: #${node.id}`);
    ids.add(node.id);
  }
  for (const node of document.querySelectorAll("input, select, textarea")) {
    if (!node.labels?.length && !node.getAttribute("aria-label")) found.push(`no label: ${short(node)}`);
  }
  for (const node of document.querySelectorAll("button, a[href], summary, [role=button]")) {
    if (visible(node) && !(node.getAttribute("aria-label") || node.textContent.trim())) found.push(`no name: ${short(node)}`);
  }
  for (const node of document.querySelectorAll("svg, img")) {
    const silent = node.getAttribute("aria-hidden") === "true" || node.getAttribute("alt") === "";
    const named = node.getAttribute("aria-label") || node.getAttribute("alt");
    if (visible(node) && !silent && !named) found.push(`picture without text: ${short(node)}`);
  }
  for (const node of document.querySelectorAll("table")) {
    if (!node.caption || [...node.querySelectorAll("th")].some((cell) => !cell.scope)) found.push(`table: ${short(node)}`);
  }
  for (const node of document.querySelectorAll("section")) {
    if (!node.getAttribute("aria-label")) found.push(`section without name: ${short(node)}`);
  }
  if (document.querySelectorAll("h1").length !== 1) found.push("not one h1");
  let level = 1;
  for (const node of document.querySelectorAll("#view h1, #view h2, #view h3")) {
    const own = Number(node.nodeName[1]);
    if (own > level + 1) found.push(`heading skips a level: ${short(node)}`);
    level = own;
  }
  for (const name of ["main", "nav", "header"]) if (document.querySelectorAll(name).length !== 1) found.push(`not one ${name}`);
  if (!document.documentElement.lang) found.push("no language");
  // Contrast of text with what is behind it.
  const canvas = new OffscreenCanvas(1, 1).getContext("2d", {willReadFrequently: true});
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((each) => (each / 255 <= 0.04045 ? each / 255 / 12.92 : ((each / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = (node) => {
    for (let each = node; each; each = each.parentElement) {
      const colour = rgba(getComputedStyle(each).backgroundColor);
      if (colour[3] === 255) return colour;
    }
    return rgba(getComputedStyle(document.documentElement).colorScheme === "dark" ? "#000" : "#fff");
  };
  const walk = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walk.nextNode()) {
    const node = walk.currentNode.parentElement;
    if (!walk.currentNode.data.trim() || !visible(node) || node.closest(":disabled, .skip, noscript, option")) continue;
    const [one, other] = [light(rgba(getComputedStyle(node).color)), light(behind(node))];
    const ratio = (Math.max(one, other) + 0.05) / (Math.min(one, other) + 0.05);
    if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${short(node)}`);
  }
  if (document.documentElement.scrollWidth > innerWidth) found.push(`wider than the window by ${document.documentElement.scrollWidth - innerWidth}`);
  return [...new Set(found)];
}
