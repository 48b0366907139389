"use strict";
// The graph: boxes of units; a click opens one.
const unitName = (u) => (D.units.name ? D.units.name[u] : D.nodes.name[u]);
const nodesOf = new Map();
D.nodes.unit.forEach((u, v) => {
  if (!nodesOf.has(u)) nodesOf.set(u, []);
  nodesOf.get(u).push(v);
});
const stageText = (s) => (s < 0 ? "" : `stage ${s}${D.stages[s] ? " on " + D.stages[s] : ""}`);
function unitTip(u) {
  const inside = nodesOf.get(u) || [],
    lines = [
      unitName(u),
      [time(D.units.time[u]), stageText(D.units.stage[u]), D.layers[D.units.layer[u]]]
        .filter(Boolean)
        .join(", "),
    ];
  const own = inside.slice(0, 8).map((v) => `${D.nodes.op[v]}  ${D.nodes.name[v]}`);
  if (inside.length > 8) own.push(`and ${inside.length - 8} more nodes`);
  let inn = 0,
    out = 0;
  for (const [a, b, s] of touching(u))
    if (b === u) inn += s;
    else out += s;
  lines.push(`reads ${size(inn)} from others, they read ${size(out)}`);
  if (D.units.flop)
    lines.push(
      D.units.flop[u] === null
        ? "work not known"
        : `${D.units.flop[u].toPrecision(4)} FLOP, ${size(D.units.bytes[u])} moved`,
    );
  return [...lines, ...own].join("\n");
}
let index = null;
function touching(u) {
  if (!index) {
    index = new Map();
    const [as, bs, sizes] = D.unit_edges;
    as.forEach((a, i) => {
      for (const v of [a, bs[i]]) {
        if (!index.has(v)) index.set(v, []);
        index.get(v).push([a, bs[i], sizes[i]]);
      }
    });
  }
  return index.get(u) || [];
}
// How far each line swings aside, so that it is seen beside the boxes between its ends: what
// `bows` in layout.py does for pictures.
function swing(items, edges) {
  const rows = new Map();
  const column = (item) => item.x / (BOX + GAP);
  const line = (item) => Math.round(item.y / (HIGH + DROP));
  for (const item of items) {
    const y = line(item);
    if (!rows.has(y)) rows.set(y, []);
    rows.get(y).push(column(item));
  }
  for (const row of rows.values()) row.sort((a, b) => a - b);
  // Whether a box of line y is over place x: the first one that may be is found by halves.
  const isCovered = (y, x) => {
    const row = rows.get(y) || [];
    let low = 0;
    let high = row.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (row[middle] > x - HALF) high = middle;
      else low = middle + 1;
    }
    return low < row.length && row[low] < x + HALF;
  };
  for (const e of edges) {
    const [a, b] = [items[e.a], items[e.b]];
    const [first, last] = [line(a), line(b)];
    let fewest = Infinity;
    e.aside = 0;
    if (Math.abs(last - first) < 2) continue;
    for (const columns of SWINGS) {
      let covered = 0;
      for (let i = 1; i < 12; i++) {
        const t = i / 12;
        const y = Math.round(first + (last - first) * (1.5 * t * (1 - t) + t ** 3));
        let x = column(a) + (column(b) - column(a)) * t * t * (3 - 2 * t);
        x += 3 * t * (1 - t) * columns;
        if (y !== first && y !== last && isCovered(y, x)) covered++;
      }
      if (covered < fewest) {
        fewest = covered;
        e.aside = columns * (BOX + GAP);
      }
      if (!covered) break;
    }
  }
  return edges;
}
let graph = null,
  opened = -1;
const unitItem = (u, x, y) => ({
  x: x * (BOX + GAP),
  y: y * (HIGH + DROP),
  w: BOX,
  h: HIGH,
  fill: color(D.units.stage[u]),
  name: unitName(u),
  sub: time(D.units.time[u]) + (D.units.stage[u] < 0 ? "" : `  stage ${D.units.stage[u]}`),
  unit: u,
  tip: () => unitTip(u),
});
const thick = (list) => {
  const full = most(list, (e) => e.size, 1e-300);
  for (const e of list) e.wide = 0.6 + (2.4 * e.size) / full;
  return list;
};
const listed = (...texts) => texts.filter(Boolean).join(", ");
function boxItem(i) {
  const B = D.boxes;
  const units = B.units[i];
  if (units.length === 1) return unitItem(units[0], B.x[i], B.y[i]);
  const [took, count] = [time(B.time[i]), `${units.length} units`];
  return {
    x: B.x[i] * (BOX + GAP),
    y: B.y[i] * (HIGH + DROP),
    w: BOX,
    h: HIGH,
    fill: color(B.stage[i]),
    name: B.name[i],
    sub: listed(took, count, B.stage[i] < 0 ? "" : `stage ${B.stage[i]}`),
    box: i,
    tip: () =>
      [B.name[i], listed(count, took, stageText(B.stage[i])), "click or Enter: open it"].join("\n"),
  };
}
function whole() {
  opened = -1;
  const items = D.boxes.name.map((_, i) => boxItem(i));
  graph.show(
    items,
    swing(items, thick(D.edges[0].map((a, i) => ({ a, b: D.edges[1][i], size: D.edges[2][i] })))),
  );
  document.getElementById("where").textContent = D.said;
  document.getElementById("back").hidden = true;
}
function open(box) {
  opened = box;
  const units = D.boxes.units[box],
    place = new Map(units.map((u, i) => [u, i])),
    list = [];
  for (const u of units)
    for (const [a, b, s] of touching(u))
      if (a === u && place.has(b)) list.push({ a: place.get(a), b: place.get(b), size: s });
  const items = units.map((u) => unitItem(u, D.units.x[u], D.units.y[u]));
  graph.show(items, swing(items, thick(list)));
  document.getElementById("where").textContent = `${D.boxes.name[box]}: ${units.length} units`;
  document.getElementById("back").hidden = false;
}
function go(u) {
  const box = D.units.box[u];
  if (D.boxes.units[box].length > 1) {
    if (opened !== box) open(box);
  } else if (opened >= 0) whole();
  const i = graph.items.findIndex((m) => m.unit === u);
  if (i >= 0) {
    graph.choose(i, true);
    graph.canvas.focus();
  }
}
if (D.boxes) {
  graph = new Board(document.getElementById("graph"), (m) => {
    if (m === null) {
      if (opened >= 0) whole();
    } else if (m.box !== undefined) open(m.box);
  });
  whole();
  document.getElementById("back").onclick = whole;
  const field = document.getElementById("search"),
    found = document.getElementById("found");
  field.oninput = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean),
      hits = [];
    if (words.length)
      for (let v = 0; v < D.nodes.name.length && hits.length < 40; v++) {
        const text = (D.nodes.name[v] + " " + D.nodes.op[v]).toLowerCase();
        if (words.every((w) => text.includes(w))) hits.push(v);
      }
    found.replaceChildren(
      ...hits.map((v) => {
        const b = document.createElement("button");
        b.textContent = `${D.nodes.op[v]}  ${D.nodes.name[v]}`;
        b.onclick = () => go(D.nodes.unit[v]);
        return b;
      }),
    );
    if (words.length && !hits.length) found.textContent = "no such node";
    if (hits.length === 40) found.append(" and more");
  };
  field.onkeydown = (e) => {
    if (e.key === "Enter" && found.firstChild && found.firstChild.click) found.firstChild.click();
  };
}

// When things run: blocks of a schedule, or units of a plan for latency.
if (D.runs) {
  const R = D.runs,
    board = new Board(document.getElementById("runs"), () => {});
  const end = most(R.end, (e) => e, 1e-300);
  board.stretch = true;
  board.rows = R.rows.map((name, i) => [i * (ROW + 20), name]);
  board.show(
    R.row.map((row, i) => ({
      x: (R.start[i] / end) * 1000,
      w: ((R.end[i] - R.start[i]) / end) * 1000,
      y: row * (ROW + 20) + 19,
      h: ROW,
      fill: R.fill[i],
      name: R.name[i],
      tip: () => `${R.said[i]}\n${time(R.start[i])} to ${time(R.end[i])}`,
    })),
    [],
  );
}
for (const button of document.querySelectorAll("[data-zoom]"))
  button.onclick = () => {
    const board = boards.find((b) => b.canvas.id === button.dataset.of),
      how = button.dataset.zoom;
    if (how === "fit") board.fit();
    else board.zoom(how === "in" ? 1.4 : 1 / 1.4);
  };

// Tables are sorted by a click on a heading.
for (const table of document.querySelectorAll("table.sorted")) {
  table.querySelectorAll("th").forEach((th, column) => {
    const text = th.textContent,
      button = document.createElement("button");
    button.textContent = text;
    if (!text) return;
    th.replaceChildren(button);
    button.onclick = () => {
      const up = th.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((o) => o.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (tr) => {
        const v = tr.cells[column].dataset.value ?? tr.cells[column].textContent;
        return v === "" || isNaN(v) ? v : +v;
      };
      const rows = [...table.tBodies[0].rows].sort((a, b) => {
        const x = key(a),
          y = key(b);
        return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1);
      });
      table.tBodies[0].replaceChildren(...rows);
    };
  });
}
if (location.hash.startsWith("#q=") && D.boxes) {
  const f = document.getElementById("search");
  f.value = decodeURIComponent(location.hash.slice(3));
  f.oninput();
  f.onkeydown({ key: "Enter" });
}
if (location.hash === "#dark" || location.hash === "#light") theme(location.hash.slice(1));
requestAnimationFrame(() => {
  root.dataset.shown = String(Math.round(performance.now()));
});
