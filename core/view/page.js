"use strict";
// Draws what the JSON of the page holds: the graph, box by box, and when things run.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement, tip = document.getElementById("tip");
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const BOX = 150, HIGH = 36, GAP = 16, DROP = 36, ROW = 24;
const boards = [];

function theme(name) {
  root.dataset.theme = name;
  for (const board of boards) board.draw();
}
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.getElementById("theme").onclick = () => theme(root.dataset.theme === "dark" ? "light" : "dark");

function time(value) {
  if (value === null || value === undefined) return "not priced";
  if (!D.seconds || value === 0) return String(+value.toPrecision(4));
  for (const [factor, unit] of [[1e6, "us"], [1e3, "ms"], [1, "s"]])
    if (value * factor < 999.5) return +(value * factor).toPrecision(3) + " " + unit;
  return value.toFixed(0) + " s";
}
function size(value) {
  for (const [factor, unit] of [[1e12, "TB"], [1e9, "GB"], [1e6, "MB"], [1e3, "kB"]])
    if (value >= factor) return +(value / factor).toPrecision(4) + " " + unit;
  return +value.toPrecision(4) + " B";
}
const color = (stage) => D.palette[(stage < 0 ? D.palette.length - 1 : stage) % D.palette.length];

// A canvas with things at places, that can be moved and enlarged.
class Board {
  constructor(canvas, picked) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.picked = picked;
    this.items = []; this.edges = [];
    this.x = 0; this.y = 0; this.scale = 1; this.at = -1; this.stretch = false;
    boards.push(this);
    canvas.tabIndex = 0;
    let drag = null, moved = false;
    canvas.onpointerdown = (e) => { drag = [e.clientX, e.clientY]; moved = false; canvas.setPointerCapture(e.pointerId); };
    canvas.onpointermove = (e) => {
      if (drag) {
        if (Math.abs(e.clientX - drag[0]) + Math.abs(e.clientY - drag[1]) > 3) moved = true;
        if (moved) { this.x -= (e.clientX - drag[0]) / this.scale; this.y -= (e.clientY - drag[1]) / this.down(); drag = [e.clientX, e.clientY]; this.draw(); }
      } else this.hover(e);
    };
    canvas.onpointerup = (e) => { drag = null; if (!moved) { const i = this.find(e); if (i >= 0) { this.choose(i); this.picked(this.items[i]); } } };
    canvas.onpointerleave = () => { tip.style.display = "none"; };
    canvas.addEventListener("wheel", (e) => {
      if (!e.ctrlKey && !e.shiftKey && document.activeElement !== canvas) return;
      e.preventDefault(); const r = canvas.getBoundingClientRect();
      this.zoom(Math.exp(-e.deltaY / 400), e.clientX - r.left, e.clientY - r.top);
    }, { passive: false });
    canvas.onkeydown = (e) => {
      const step = 80 / this.scale, keys = { ArrowLeft: [-step, 0], ArrowRight: [step, 0], ArrowUp: [0, -80 / this.down()], ArrowDown: [0, 80 / this.down()] };
      if (keys[e.key]) { this.x += keys[e.key][0]; this.y += keys[e.key][1]; this.draw(); }
      else if (e.key === "+" || e.key === "=") this.zoom(1.3);
      else if (e.key === "-") this.zoom(1 / 1.3);
      else if (e.key === "0") this.fit();
      else if (e.key === "n" || e.key === "p") this.choose((this.at + (e.key === "n" ? 1 : this.items.length - 1) + this.items.length) % this.items.length, true);
      else if (e.key === "Enter" && this.at >= 0) this.picked(this.items[this.at]);
      else if (e.key === "Escape") this.picked(null);
      else return;
      e.preventDefault();
    };
    new ResizeObserver(() => this.resize()).observe(canvas);
  }
  down() { return this.stretch ? 1 : this.scale; }
  show(items, edges) {
    this.items = items; this.edges = edges; this.at = -1;
    this.right = Math.max(1, ...items.map((i) => i.x + i.w)); this.bottom = Math.max(1, ...items.map((i) => i.y + i.h));
    this.resize(); this.fit();
  }
  resize() {
    const r = this.canvas.getBoundingClientRect(), ratio = devicePixelRatio || 1;
    this.w = r.width; this.h = r.height;
    this.canvas.width = Math.round(r.width * ratio); this.canvas.height = Math.round(r.height * ratio);
    this.ratio = ratio; this.draw();
  }
  fit() {
    const full = (this.w - 20) / this.right;
    this.scale = this.stretch ? full : Math.max(0.28, Math.min(1.2, full));
    // What is wider than the page begins where its first box is in the middle.
    const seen = this.w / this.scale, first = this.items[0], left = -10 / this.scale;
    this.x = this.stretch ? left : this.right <= seen - 20 / this.scale ? (this.right - seen) / 2
      : Math.max(left, Math.min(first.x + first.w / 2 - seen / 2, this.right - seen - left));
    this.y = -10 / this.down(); this.draw();
  }
  zoom(factor, cx = this.w / 2, cy = this.h / 2) {
    const before = this.scale, next = Math.max(0.01, Math.min(this.stretch ? 1e9 : 6, before * factor));
    this.x += cx / before - cx / next;
    if (!this.stretch) this.y += cy / before - cy / next;
    this.scale = next; this.draw();
  }
  center(i) {
    const item = this.items[i]; if (!this.stretch) this.scale = Math.max(this.scale, 0.9);
    this.x = item.x + item.w / 2 - this.w / this.scale / 2; this.y = item.y + item.h / 2 - this.h / this.down() / 2;
  }
  choose(i, move = false) {
    this.at = i; if (move) this.center(i);
    document.getElementById("said").textContent = this.items[i].tip(); this.draw();
  }
  find(e) {
    const r = this.canvas.getBoundingClientRect(), x = (e.clientX - r.left) / this.scale + this.x, y = (e.clientY - r.top) / this.down() + this.y;
    for (let i = this.items.length - 1; i >= 0; i--) { const m = this.items[i]; if (x >= m.x && x <= m.x + m.w && y >= m.y && y <= m.y + m.h) return i; }
    return -1;
  }
  hover(e) {
    const i = this.find(e);
    tip.style.display = i < 0 ? "none" : "block";
    if (i < 0) return;
    tip.textContent = this.items[i].tip();
    const w = tip.offsetWidth, h = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 4)) + "px";
    tip.style.top = (e.clientY + 18 + h > innerHeight ? e.clientY - h - 10 : e.clientY + 18) + "px";
  }
  text(text, x, y, wide, font) {
    const c = this.context; c.font = font;
    let shown = text;
    if (c.measureText(shown).width > wide) {
      let low = 0, high = text.length;
      while (low < high) { const half = (low + high + 1) >> 1, k = Math.ceil(half / 2); const t = text.slice(0, k) + "…" + text.slice(text.length - (half - k)); if (c.measureText(t).width <= wide) low = half; else high = half - 1; }
      if (low < 2) return;
      const k = Math.ceil(low / 2); shown = text.slice(0, k) + "…" + text.slice(text.length - (low - k));
    }
    c.fillText(shown, x, y);
  }
  draw() {
    if (!this.w || !this.items.length) return;
    const c = this.context, ink = css("--ink"), paper = css("--paper"), s = this.scale, d = this.down();
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = paper; c.fillRect(0, 0, this.w, this.h);
    const px = (v) => (v - this.x) * s, py = (v) => (v - this.y) * d;
    c.strokeStyle = ink; c.globalAlpha = 0.45;
    for (const e of this.edges) {
      const a = this.items[e.a], b = this.items[e.b];
      const x1 = px(a.x + a.w / 2), y1 = py(a.y + a.h), x2 = px(b.x + b.w / 2), y2 = py(b.y);
      if (Math.max(x1, x2) < -50 || Math.min(x1, x2) > this.w + 50 || Math.max(y1, y2) < -50 || Math.min(y1, y2) > this.h + 50) continue;
      const bend = Math.max(Math.abs(y2 - y1) / 2, DROP * d / 2);
      c.lineWidth = e.wide * Math.min(1, Math.max(0.4, s)); c.beginPath(); c.moveTo(x1, y1); c.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2); c.stroke();
    }
    c.globalAlpha = 1; c.lineWidth = 1;
    this.items.forEach((m, i) => {
      const x = px(m.x), y = py(m.y), w = Math.max(m.w * s, 0.5), h = m.h * d;
      if (x > this.w || y > this.h || x + w < 0 || y + h < 0) return;
      c.fillStyle = paper; c.fillRect(x, y, w, h);
      c.globalAlpha = 0.45; c.fillStyle = m.fill; c.fillRect(x, y, w, h); c.globalAlpha = 1;
      c.lineWidth = i === this.at ? 3 : 1; c.strokeStyle = ink; if (w > 2 || i === this.at) c.strokeRect(x, y, w, h);
      c.fillStyle = ink;
      const left = Math.max(x, 0), room = Math.min(x + w, this.w) - left - 8;
      if (room < 8) return;
      if (m.sub === undefined) this.text(m.name, left + 4, y + h / 2 + 4, room, "11px Helvetica, Arial, sans-serif");
      else if (h >= 14) {
        const f = Math.max(7, Math.min(12, 11 * s));
        this.text(m.name, left + 5 * s, y + 14 * s, room, f + "px Helvetica, Arial, sans-serif");
        this.text(m.sub, left + 5 * s, y + 29 * s, room, f * 0.9 + "px Helvetica, Arial, sans-serif");
      }
    });
    for (const [y, name] of this.rows || []) { c.font = "11px Helvetica, Arial, sans-serif"; const w = c.measureText(name).width; c.globalAlpha = 0.8; c.fillStyle = paper; c.fillRect(0, py(y) + 2, w + 8, 15); c.globalAlpha = 1; c.fillStyle = ink; c.fillText(name, 4, py(y) + 14); }
  }
}

// The graph: boxes of units; a click opens one.
const unitName = (u) => D.units.name ? D.units.name[u] : D.nodes.name[u];
const nodesOf = new Map();
D.nodes.unit.forEach((u, v) => { if (!nodesOf.has(u)) nodesOf.set(u, []); nodesOf.get(u).push(v); });
const stageText = (s) => s < 0 ? "" : `stage ${s}${D.stages[s] ? " on " + D.stages[s] : ""}`;
function unitTip(u) {
  const inside = nodesOf.get(u) || [], lines = [unitName(u), [time(D.units.time[u]), stageText(D.units.stage[u]), D.layers[D.units.layer[u]]].filter(Boolean).join(", ")];
  const own = inside.slice(0, 8).map((v) => `${D.nodes.op[v]}  ${D.nodes.name[v]}`);
  if (inside.length > 8) own.push(`and ${inside.length - 8} more nodes`);
  let inn = 0, out = 0;
  for (const [a, b, s] of touching(u)) if (b === u) inn += s; else out += s;
  lines.push(`reads ${size(inn)} from others, they read ${size(out)}`);
  if (D.units.flop) lines.push(D.units.flop[u] === null ? "work not known" : `${D.units.flop[u].toPrecision(4)} FLOP, ${size(D.units.bytes[u])} moved`);
  return [...lines, ...own].join("\n");
}
let index = null;
function touching(u) {
  if (!index) { index = new Map(); const [as, bs, sizes] = D.unit_edges; as.forEach((a, i) => { for (const v of [a, bs[i]]) { if (!index.has(v)) index.set(v, []); index.get(v).push([a, bs[i], sizes[i]]); } }); }
  return index.get(u) || [];
}
let graph = null, opened = -1;
const unitItem = (u, x, y) => ({ x: x * (BOX + GAP), y: y * (HIGH + DROP), w: BOX, h: HIGH, fill: color(D.units.stage[u]), name: unitName(u), sub: time(D.units.time[u]) + (D.units.stage[u] < 0 ? "" : `  stage ${D.units.stage[u]}`), unit: u, tip: () => unitTip(u) });
const thick = (list) => { const most = Math.max(1e-300, ...list.map((e) => e.size)); for (const e of list) e.wide = 0.6 + 2.4 * e.size / most; return list; };
function whole() {
  opened = -1;
  const B = D.boxes, items = B.name.map((name, i) => B.units[i].length === 1 ? unitItem(B.units[i][0], B.x[i], B.y[i]) : {
    x: B.x[i] * (BOX + GAP), y: B.y[i] * (HIGH + DROP), w: BOX, h: HIGH, fill: color(B.stage[i]), name, sub: `${time(B.time[i])}, ${B.units[i].length} units`, box: i,
    tip: () => `${name}\n${B.units[i].length} units, ${[time(B.time[i]), stageText(B.stage[i])].filter(Boolean).join(", ")}\nclick or Enter: open it` });
  graph.show(items, thick(D.edges[0].map((a, i) => ({ a, b: D.edges[1][i], size: D.edges[2][i] }))));
  document.getElementById("where").textContent = D.said; document.getElementById("back").hidden = true;
}
function open(box) {
  opened = box;
  const units = D.boxes.units[box], place = new Map(units.map((u, i) => [u, i])), list = [];
  for (const u of units) for (const [a, b, s] of touching(u)) if (a === u && place.has(b)) list.push({ a: place.get(a), b: place.get(b), size: s });
  graph.show(units.map((u) => unitItem(u, D.units.x[u], D.units.y[u])), thick(list));
  document.getElementById("where").textContent = `${D.boxes.name[box]}: ${units.length} units`; document.getElementById("back").hidden = false;
}
function go(u) {
  const box = D.units.box[u];
  if (D.boxes.units[box].length > 1) { if (opened !== box) open(box); } else if (opened >= 0) whole();
  const i = graph.items.findIndex((m) => m.unit === u);
  if (i >= 0) { graph.choose(i, true); graph.canvas.focus(); }
}
if (D.boxes) {
  graph = new Board(document.getElementById("graph"), (m) => { if (m === null) { if (opened >= 0) whole(); } else if (m.box !== undefined) open(m.box); });
  whole();
  document.getElementById("back").onclick = whole;
  const field = document.getElementById("search"), found = document.getElementById("found");
  field.oninput = () => {
    const words = field.value.toLowerCase().split(/\s+/).filter(Boolean), hits = [];
    if (words.length) for (let v = 0; v < D.nodes.name.length && hits.length < 40; v++) {
      const text = (D.nodes.name[v] + " " + D.nodes.op[v]).toLowerCase();
      if (words.every((w) => text.includes(w))) hits.push(v);
    }
    found.replaceChildren(...hits.map((v) => { const b = document.createElement("button"); b.textContent = `${D.nodes.op[v]}  ${D.nodes.name[v]}`; b.onclick = () => go(D.nodes.unit[v]); return b; }));
    if (words.length && !hits.length) found.textContent = "no such node";
    if (hits.length === 40) found.append(" and more");
  };
  field.onkeydown = (e) => { if (e.key === "Enter" && found.firstChild && found.firstChild.click) found.firstChild.click(); };
}

// When things run: blocks of a schedule, or units of a plan for latency.
if (D.runs) {
  const R = D.runs, board = new Board(document.getElementById("runs"), () => {});
  const end = Math.max(1e-300, ...R.end);
  board.stretch = true;
  board.rows = R.rows.map((name, i) => [i * (ROW + 20), name]);
  board.show(R.row.map((row, i) => ({ x: R.start[i] / end * 1000, w: (R.end[i] - R.start[i]) / end * 1000, y: row * (ROW + 20) + 19, h: ROW, fill: R.fill[i], name: R.name[i], tip: () => `${R.said[i]}\n${time(R.start[i])} to ${time(R.end[i])}` })), []);
}
for (const button of document.querySelectorAll("[data-zoom]")) button.onclick = () => {
  const board = boards.find((b) => b.canvas.id === button.dataset.of), how = button.dataset.zoom;
  if (how === "fit") board.fit(); else board.zoom(how === "in" ? 1.4 : 1 / 1.4);
};

// Tables are sorted by a click on a heading.
for (const table of document.querySelectorAll("table.sorted")) {
  table.querySelectorAll("th").forEach((th, column) => {
    const text = th.textContent, button = document.createElement("button");
    button.textContent = text; if (!text) return;
    th.replaceChildren(button);
    button.onclick = () => {
      const up = th.getAttribute("aria-sort") !== "ascending";
      table.querySelectorAll("th").forEach((o) => o.removeAttribute("aria-sort"));
      th.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (tr) => { const v = tr.cells[column].dataset.value ?? tr.cells[column].textContent; return v === "" || isNaN(v) ? v : +v; };
      const rows = [...table.tBodies[0].rows].sort((a, b) => { const x = key(a), y = key(b); return (x < y ? -1 : x > y ? 1 : 0) * (up ? 1 : -1); });
      table.tBodies[0].replaceChildren(...rows);
    };
  });
}
if (location.hash.startsWith("#q=") && D.boxes) { const f = document.getElementById("search"); f.value = decodeURIComponent(location.hash.slice(3)); f.oninput(); f.onkeydown({ key: "Enter" }); }
if (location.hash === "#dark" || location.hash === "#light") theme(location.hash.slice(1));
requestAnimationFrame(() => { root.dataset.shown = String(Math.round(performance.now())); });
