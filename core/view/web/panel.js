"use strict";
// What is chosen, in words, beside the graph.
const NEAR = 8;
const KINDS = { root: "model", part: "part of a long list", unit: "group", node: "operator" };

function rowsOf(pairs) {
  const row = ([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value));
  return make("dl", {}, ...pairs.filter(([, value]) => value).map(row));
}

const section = (title, ...inside) => make("section", {}, make("h4", {}, title), ...inside);

function showPanel(title, kind, ...parts) {
  const head = [make("p", { className: "kind" }, kind), make("h3", {}, title)];
  byId("panel").replaceChildren(...head, ...parts.filter(Boolean));
  byId("said").textContent = `${kind}: ${title}`;
}

function describe(chosen) {
  const box = chosen ?? graph.root;
  const stage = box.kind === "stage" && D.stages[box.stage];
  const about = stage ? ofStage(stage) : box.leaf ? ofNode(box.nodes[0], box) : [];
  const inside = box.leaf ? tensorsOf(box.nodes[0]) : [operatorsOf(box)];
  const rows = rowsOf([...about, ...sums(box)]);
  showPanel(box.name, KINDS[box.kind] ?? box.kind, rows, wayOf(box), ...inside, ...nearOf(box));
  if (!chosen) byId("panel").append(byId("keys").content.cloneNode(true));
}

const sizeOf = (tensors) => [...tensors].reduce((sum, t) => sum + (D.tensors.size[t] ?? 0), 0);

function sums({ nodes, time: took, leaf }) {
  const sumOf = (column) => nodes.reduce((sum, v) => sum + (column[v] ?? 0), 0);
  const weights = new Set(nodes.flatMap((v) => [...read(v)].filter(isWeight)));
  const known = D.nodes.flop && nodes.some((v) => D.nodes.flop[v] !== null);
  return [
    ["compute", M.total > 0 && `${time(took)}, ${share(took / M.total)} of all`],
    ["operators", !leaf && whole(nodes.length)],
    ["work", known && amount(sumOf(D.nodes.flop))],
    ["moved in memory", D.nodes.bytes && size(sumOf(D.nodes.bytes))],
    ["weights", weights.size && `${size(sizeOf(weights))} in ${counted(weights.size, "tensor")}`],
  ];
}

function ofStage({ device, layers, parts, load, capacity, memory, measured, resident }) {
  return [
    ["device", device],
    ["layers", layers],
    ["load", time(load)],
    ...Object.entries(parts).map(([name, found]) => [`· ${name}`, time(found)]),
    ["proven bound", D.bound !== null && time(D.bound)],
    ["measured", measured && `${time(measured)}, ${(measured / load).toFixed(2)} times the load`],
    ["memory", size(memory) + (capacity ? ` of ${size(capacity)}, ${share(memory / capacity)}` : "")],
    ["memory measured", resident !== null && size(resident)],
  ];
}

function ofNode(v, { stage }) {
  const [u, other] = [M.unit[v], D.other?.stage[v] ?? -1];
  return [
    ["operator", D.ops[D.nodes.op[v]]],
    ...attributesOf(v),
    ["node", String(D.nodes.id[v])],
    ["stage", stage >= 0 && `${stage} on ${D.stages[stage].device}`],
    ["in plan B", other >= 0 && `stage ${other} on ${D.other.stages[other]}`],
    ["group", D.units.count[u] > 1 && `${unitName(u)}, ${time(D.units.time[u])}`],
    ["slowest path", M.total > 0 && onPath(u)],
  ];
}

const attributesOf = (v) =>
  D.attributes?.[D.nodes.attributes[v]].split("\n").map((text) => `· ${text}`.split(" = ")) ??
  [["attributes", D.source && `in ${D.source}`]];

function onPath(u) {
  const { before, after, cost, all } = slowestPath();
  const spare = all - before[u] - cost[u] - after[u];
  if (spare > 1e-9 * all) return `not on it: ${time(spare)} to spare, of ${time(all)}`;
  return `on it: ${time(before[u])} before, ${time(after[u])} after, of ${time(all)}`;
}

function jump(text, onclick, more = "") {
  return make("button", { className: "jump", onclick }, text, more && make("i", {}, more));
}

// Boxes around, from the outermost in.
function wayOf(box) {
  const way = [];
  for (let b = box.parent; b?.parent; b = b.parent) way.unshift(jump(b.name, () => choose(b)));
  return way.length && make("p", { className: "way" }, "in ", ...way.slice(0, -1), way.at(-1));
}

const rest = (shown, all) => (all > shown ? make("p", {}, `and ${whole(all - shown)} more`) : "");

function operatorsOf(box) {
  const found = operatorsIn(box);
  const pairs = found.slice(0, NEAR).map(([op, [count, cost]]) => [
    D.ops[op],
    (M.total > 0 ? `${time(cost)} in ` : "") + whole(count),
  ]);
  return section("Operators", rowsOf(pairs), rest(NEAR, found.length));
}

// What is read from others, and what they read: nodes to jump to, with what moves.
function nearOf(box) {
  return [false, true].map((forward) => {
    const found = new Map();
    for (const [t, other] of linked(box, forward)) found.set(other, (found.get(other) ?? new Set()).add(t));
    const rows = [...found].map(([v, tensors]) => [v, sizeOf(tensors)]).sort((a, b) => b[1] - a[1]);
    const list = rows.slice(0, NEAR).map(([v, bytes]) => jump(nodeName(v), () => graph.reveal(v), size(bytes)));
    return list.length && section(forward ? "Goes to" : "Comes from", ...list, rest(NEAR, rows.length));
  });
}

function tensorsOf(v) {
  const inputs = [...read(v)];
  const kinds = [
    ["Reads", inputs.filter((t) => !isWeight(t))],
    ["Weights", inputs.filter(isWeight)],
    ["Makes", [...written(v)]],
  ];
  return kinds.map(([title, tensors]) => {
    const pairs = tensors.slice(0, 3 * NEAR).map((t) => [
      D.tensors.name[t] || "tensor",
      listed(D.types[D.tensors.type[t]], size(D.tensors.size[t] ?? 0)),
    ]);
    const list = section(title, rowsOf(pairs), rest(3 * NEAR, tensors.length));
    return tensors.length && Object.assign(list, { className: "tensors" });
  });
}

// What crosses the border before a stage.
function describeBorder(border) {
  const rows = [];
  M.maker.forEach((maker, t) => {
    const from = maker < 0 ? -1 : stageOf(maker);
    const crossing = (to) => Math.min(from, to) < border && Math.max(from, to) >= border;
    const targets = new Set([...readers(t)].map(stageOf).filter(crossing));
    if (maker >= 0 && targets.size) rows.push([t, maker, from, [...targets].join(", ")]);
  });
  rows.sort((a, b) => D.tensors.size[b[0]] - D.tensors.size[a[0]]);
  const list = rows.slice(0, 4 * NEAR).map(([t, maker, from, to]) => {
    const what = `${size(D.tensors.size[t])}, stage ${from} to ${to}`;
    return jump(D.tensors.name[t] || nodeName(maker), () => graph.reveal(maker), what);
  });
  const where = `between stage ${border - 1} and ${border}`;
  showPanel(counted(rows.length, "tensor"), where, ...list, rest(4 * NEAR, rows.length));
}
