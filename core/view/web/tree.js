"use strict";
// What the page holds, and its boxes: stages, layers, groups, operators.
let D = null;
// Indexes of nodes and tensors, made once.
const M = {};
const [FOLD, MOST_STAGES, MOST_OPEN] = [28, 90, 300];

async function unpacked(text) {
  const raw = atob(text);
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

function offsets(counts) {
  const ptr = new Int32Array(counts.length + 1);
  counts.forEach((count, i) => (ptr[i + 1] = ptr[i] + count));
  return ptr;
}

function index() {
  const { nodes, units, tensors } = D;
  M.count = nodes.name.length;
  M.first = offsets(units.count);
  M.unit = new Int32Array(M.count);
  units.count.forEach((_, u) => M.unit.fill(u, M.first[u], M.first[u + 1]));
  M.reads = offsets(nodes.reads.count);
  M.writes = offsets(nodes.writes.count);
  M.read = Int32Array.from(nodes.reads.tensor);
  M.written = Int32Array.from(nodes.writes.tensor);
  M.maker = new Int32Array(tensors.name.length).fill(-1);
  const uses = new Array(tensors.name.length).fill(0);
  for (let v = 0; v < M.count; v++) for (const t of written(v)) M.maker[t] = v;
  for (const t of M.read) uses[t]++;
  M.uses = offsets(uses);
  M.reader = new Int32Array(M.read.length);
  const at = M.uses.slice();
  for (let v = 0; v < M.count; v++) for (const t of read(v)) M.reader[at[t]++] = v;
  M.cost = Float64Array.from(nodes.time, (t) => t ?? 0);
  M.total = M.cost.reduce((sum, c) => sum + c, 0);
}

const read = (v) => M.read.subarray(M.reads[v], M.reads[v + 1]);
const written = (v) => M.written.subarray(M.writes[v], M.writes[v + 1]);
const readers = (t) => M.reader.subarray(M.uses[t], M.uses[t + 1]);
const stageOf = (v) => D.units.stage[M.unit[v]];
const isWeight = (t) => D.tensors.kind[t] === 2 || D.tensors.kind[t] === 3;

// Longest chain of units by compute: what comes before each, and after it.
function slowestPath() {
  if (M.path) return M.path;
  const cost = Float64Array.from(D.units.time, (t) => t ?? 0);
  const [before, after] = [cost.map(() => 0), cost.map(() => 0)];
  const each = (v, heed) => {
    for (const t of read(v)) if (M.maker[t] >= 0) heed(M.unit[M.maker[t]], M.unit[v]);
  };
  const longer = (way, b, a) => a !== b && (way[b] = Math.max(way[b], way[a] + cost[a]));
  for (let v = 0; v < M.count; v++) each(v, (a, b) => longer(before, b, a));
  for (let v = M.count - 1; v >= 0; v--) each(v, (a, b) => longer(after, a, b));
  const all = before.reduce((most, each, u) => Math.max(most, each + cost[u] + after[u]), 0);
  return (M.path = { before, after, cost, all });
}

class Box {
  constructor(parent, kind, name, nodes, depth, held = null) {
    Object.assign(this, { parent, kind, name, nodes, depth, held, kids: null, links: null });
    this.leaf = kind === "node";
    this.key = (parent ? parent.key + "/" : "") + `${kind[0]}${nodes[0]}.${nodes.length}`;
    this.time = nodes.reduce((sum, v) => sum + M.cost[v], 0);
    this.stage = nodes.every((v) => stageOf(v) === stageOf(nodes[0])) ? stageOf(nodes[0]) : -1;
  }
}

function keyIn(box, v, depth) {
  if (box.kind === "root" && D.stages.length) return ["stage", stageOf(v)];
  const path = D.paths[D.units.path[M.unit[v]]];
  if (box.kind !== "unit" && depth < path.length) return ["layer", path[depth]];
  if (box.kind !== "unit" && D.units.count[M.unit[v]] > 1) return ["unit", M.unit[v]];
  return ["node", v];
}

// Boxes in a box, each in the order of its first node.
function kidsOf(box) {
  if (box.kids || box.leaf) return box.kids ?? [];
  box.kids = folded(box, box.held ?? divided(box));
  const shorts = box.kids.map(lastParts);
  const alone = (name) => shorts.indexOf(name) === shorts.lastIndexOf(name);
  for (const [i, kid] of box.kids.entries()) kid.short = alone(shorts[i]) ? shorts[i] : kid.name;
  return box.kids;
}

function divided(box) {
  for (let depth = box.depth; ; depth++) {
    const groups = new Map();
    for (const v of box.nodes) {
      const [kind, name] = keyIn(box, v, depth);
      const key = kind + "\n" + name;
      if (!groups.has(key)) groups.set(key, { kind, name, nodes: [] });
      groups.get(key).nodes.push(v);
    }
    const found = [...groups.values()].sort((a, b) => (a.kind === "stage" ? a.name - b.name : 0));
    // A layer that is all of the box is the box itself.
    if (found.length > 1 || found[0].kind !== "layer") return found.map((g) => made(box, g, depth));
  }
}

function made(box, { kind, name, nodes }, depth) {
  const u = M.unit[nodes[0]];
  if (kind === "stage") return new Box(box, kind, `stage ${name}`, nodes, 0);
  if (nodes.length === 1) return new Box(box, "node", nodeName(nodes[0]), nodes, depth);
  const kept = D.units.count[u] === nodes.length ? "unit" : "layer";
  return new Box(box, kept, kind === "unit" ? unitName(u) : name, nodes, depth + 1);
}

const nodeName = (v) => D.nodes.name[v] || D.ops[D.nodes.op[v]] + " " + D.nodes.id[v];
const unitName = (u) => D.units.name?.[u] || nodeName(M.first[u]);

// A long list becomes one of parts, each of boxes that follow one another.
function folded(box, list) {
  if (list.length <= (list[0].kind === "stage" ? MOST_STAGES : FOLD)) return list;
  const size = Math.ceil(list.length / Math.min(FOLD, Math.ceil(list.length / FOLD)));
  const parts = [];
  for (let i = 0; i < list.length; i += size) {
    const held = list.slice(i, i + size);
    const name = `${lastParts(held[0])} … ${lastParts(held.at(-1))}`;
    const part = new Box(box, "part", name, held.flatMap((b) => b.nodes), box.depth, held);
    for (const each of held) each.parent = part;
    parts.push(part);
  }
  return parts;
}

// The last parts of a name: what is in front of them stands on the boxes around.
function lastParts(box) {
  if (box.kind === "part" || box.kind === "stage") return box.name;
  const parts = box.name.split("/").filter(Boolean);
  return parts.slice(/^\d+$/.test(parts.at(-1)) ? -2 : -1).join("/") || box.name;
}

// What moves between the boxes in a box: [a, b, bytes]; a tensor once for each that reads it.
function linksIn(box) {
  if (box.links) return box.links;
  const owner = (M.owner ??= new Int32Array(M.count)).fill(-1);
  kidsOf(box).forEach((kid, i) => kid.nodes.forEach((v) => (owner[v] = i)));
  const found = new Map();
  for (const v of box.nodes)
    for (const t of written(v)) {
      const targets = new Set();
      for (const r of readers(t)) if (owner[r] >= 0 && owner[r] !== owner[v]) targets.add(owner[r]);
      for (const b of targets) {
        const key = owner[v] * box.kids.length + b;
        const link = found.get(key) ?? [owner[v], b, 0];
        link[2] += D.tensors.size[t] ?? 0;
        found.set(key, link);
      }
    }
  return (box.links = [...found.values()]);
}

// Boxes from the whole to the one that a node is in, down to the node itself.
function wayTo(root, v) {
  const way = [root];
  while (!way.at(-1).leaf) way.push(kidsOf(way.at(-1)).find((kid) => kid.nodes.includes(v)));
  return way;
}

// What is read from outside a box, or goes out of it: [tensor, node outside].
function linked(box, forward) {
  const kept = forward ? "readers" : "makers";
  if (box[kept]) return box[kept];
  const inside = (M.inside ??= new Int32Array(M.count));
  const turn = (M.turn = (M.turn ?? 0) + 1);
  for (const v of box.nodes) inside[v] = turn;
  box[kept] = [];
  for (const v of box.nodes)
    for (const t of forward ? written(v) : read(v))
      for (const other of forward ? readers(t) : [M.maker[t]])
        if (other >= 0 && inside[other] !== turn) box[kept].push([t, other]);
  return box[kept];
}
