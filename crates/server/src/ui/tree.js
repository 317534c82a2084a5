
const SVG = "http://www.w3.org/2000/svg";
const COLUMN = 69, ROW = 28, BOX = { width: 64, height: 20 }, LETTERS = 9;

function svg(name, attributes, parent, text) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  if (text !== undefined) element.textContent = text;
  parent?.append(element);
  return element;
}

/** White space that can be seen, and not too much of anything. */
function label(text) {
  const seen = [...text.replace(/ /g, "␣").replace(/\n/g, "⏎").replace(/\t/g, "⇥")];
  return seen.length > LETTERS ? seen.slice(0, LETTERS - 1).join("") + "…" : seen.join("");
}

/** Nodes with places: lines by depth; every leaf has a column of its own, parents stand above their likeliest child. */
function layout(step) {
  const nodes = step.nodes.map((node) => ({ ...node, children: [], kind: "" }));
  const kept = new Set(step.path);
  nodes.forEach((node, index) => {
    if (node.parent === null) node.kind = "root";
    else nodes[node.parent].children.push(node);
    if (kept.has(index)) node.kind = "kept";
  });
  if (step.bonus) {
    const end = nodes[step.path.at(-1) ?? 0];
    const bonus = { ...step.bonus, depth: end.depth + 1, rank: null, logprob: null, children: [], kind: "bonus", parent: nodes.indexOf(end) };
    end.children.push(bonus);
    nodes.push(bonus);
  }
  let columns = 0;
  const place = (node) => {
    node.children.sort((a, b) => (b.logprob ?? -1e9) - (a.logprob ?? -1e9));
    node.children.forEach(place);
    node.x = node.children.length ? node.children[0].x : COLUMN * columns++;
    node.y = ROW * node.depth;
  };
  place(nodes[0]);
  return { nodes, columns, lines: 1 + Math.max(...nodes.map((node) => node.depth)) };
}

function describe(step) {
  const said = step.path.map((index) => step.nodes[index].text).join("");
  const what = { plain: "Plain step", chain: `Chain of ${step.nodes.length - 1} drafts`, tree: `Tree of ${step.nodes.length - 1} drafts` }[step.mode];
  return `${what}, ${step.path.length} accepted${said ? `: ${said}` : ""}${step.bonus ? `; then ${step.bonus.text}` : ""}`;
}

function drawTree(parent, step) {
  const { nodes, lines, columns } = layout(step);
  const [width, height] = [COLUMN * columns, ROW * lines];
  const root = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}`, role: "img", "aria-label": describe(step) });
  for (const node of nodes) {
    if (node.parent === null) continue;
    const from = nodes[node.parent];
    const [x0, y0, x1, y1] = [from.x + BOX.width / 2, from.y + BOX.height + 1, node.x + BOX.width / 2, node.y + 1];
    const kind = { kept: "kept", bonus: "extra" }[node.kind] ?? "";
    svg("path", { class: `edge ${kind}`, d: `M${x0} ${y0}C${x0} ${y1} ${x1} ${y0} ${x1} ${y1}` }, root);
  }
  for (const node of nodes) {
    const group = svg("g", { class: `node ${node.kind}`, transform: `translate(${node.x} ${node.y})` }, root);
    group.style.setProperty("--depth", node.depth);
    const drafter = node.logprob === null ? "" : `\ndrafter ${percent(node.logprob)}, rank ${node.rank}`;
    svg("title", {}, group, `${JSON.stringify(node.text)}, token ${node.id}, depth ${node.depth}${drafter}`);
    svg("rect", { x: 1, y: 1, width: BOX.width - 2, height: BOX.height, rx: 6 }, group);
    svg("text", { x: BOX.width / 2, y: BOX.height / 2 + 5, "text-anchor": "middle" }, group, label(node.text));
  }
  parent.replaceChildren(root);
}
