"use strict";
// The graph as boxes in boxes: what is open, what is chosen, what is found.
const BOX = { w: 164, h: 44 };
const [MOST_LINES, AT_FIRST] = [240, 90];

// Layouts are made beside the page; where no worker can be had, in it.
let worker = null;
try {
  worker = new Worker(URL.createObjectURL(new Blob([byId("libs").textContent])));
} catch {}

let before = Promise.resolve();
function placed(box) {
  const made = (done) => {
    const here = () => done(arrange(box));
    if (!worker) return here();
    worker.onmessage = ({ data }) => done(data);
    worker.onerror = () => here((worker = null));
    worker.postMessage(box);
  };
  return (before = before.then(() => new Promise(made)));
}

class GraphView {
  constructor(canvas, map) {
    this.root = new Box(null, "root", D.model, [...Array(M.count).keys()], 0);
    this.open = new Set([this.root]);
    Object.assign(this, { map, turn: 0, colors: "stage", match: null });
    this.board = new Board(canvas, {
      picked: (m, moved) => this.pick(m?.box ?? null, moved),
      words: (m) => boxWords(m.box, m.inside),
      keys: (key) => this.key(key),
    });
    this.board.over = () => this.drawMap();
    map.onpointerdown = map.onpointermove = (e) => this.move(e);
  }
  // Layers of all stages where they are few.
  begin() {
    const stages = kidsOf(this.root).filter((kid) => kid.kind === "stage");
    const few = stages.flatMap(kidsOf).length <= AT_FIRST;
    for (const stage of few ? stages : []) this.open.add(stage);
    return this.show(this.root);
  }
  key(key) {
    const at = chosen ?? this.root;
    const around = this.open.has(at) ? at : at.parent;
    if (key === "Enter") this.toggle(at);
    else if (key === "Escape") {
      this.toggle(around, false);
      choose(around.parent && around);
    } else return false;
    return true;
  }
  pick(box, moved) {
    const turned = box && (box === chosen || !this.open.has(box));
    choose(box);
    if (!moved && turned) this.toggle(box);
  }
  toggle(box, open = !this.open.has(box)) {
    if (box.leaf || box === this.root) return null;
    for (let one = box; one && open; one = one.parent) {
      this.open.delete(one);
      this.open.add(one);
    }
    if (open) this.makeRoom(box);
    else this.open.delete(box);
    return this.show(open ? box : box.parent);
  }
  // Close what was opened first until no more boxes are open than can be laid out.
  makeRoom(box) {
    const count = (one) =>
      this.open.has(one) ? kidsOf(one).reduce((sum, kid) => sum + count(kid), 1) : 1;
    for (const other of [...this.open])
      if (count(this.root) > MOST_OPEN && !box.key.startsWith(other.key)) this.open.delete(other);
  }
  async reveal(v) {
    const way = wayTo(this.root, v);
    const shut = way.filter((box) => !box.leaf && !this.open.has(box));
    choose(way.at(-1), false);
    if (shut.length) await this.toggle(way.at(-2), true);
    this.board.seek(this.item(chosen));
  }
  spec(box) {
    if (!this.open.has(box)) return { ...BOX };
    const kids = kidsOf(box).map((kid) => this.spec(kid));
    const edges = heaviest(linksIn(box)).map(([a, b]) => [a, b]);
    const aspect = this.board.w / this.board.h;
    const wide = box.kind === "stage" ? Math.max(0.5, (1.5 * aspect) / D.stages.length) : 1.7;
    return { kids, edges, wide, right: box === this.root && D.stages.length > 1 && aspect };
  }
  async show(focus) {
    const turn = ++this.turn;
    this.board.resize();
    const found = await placed(this.spec(this.root));
    if (turn !== this.turn) return;
    this.items = [];
    this.plain = [];
    this.flatten(this.root, found, -14, -20);
    this.seen = new Int32Array(M.count).fill(-1);
    this.items.forEach((m, i) => m.box.nodes.forEach((v) => (this.seen[v] = i)));
    this.paint();
    if (focus === this.root) this.board.fit();
    else this.focus(this.item(focus));
  }
  // All of it where that can be read, else the box that was opened.
  focus(item) {
    const { board } = this;
    board.fit();
    if (board.view.k < 0.6) board.fit(item, 1);
    if (board.view.k < 0.45) board.set(0.7, board.w / 2 - (item.x + item.w / 2) * 0.7, 30 - item.y * 0.7);
  }
  flatten(box, spec, x, y) {
    kidsOf(box).forEach((kid, i) => {
      const at = spec.kids[i];
      const m = { box: kid, x: x + at.x, y: y + at.y, w: at.w, h: at.h, inside: !!at.kids };
      this.items.push(m);
      if (m.inside) this.flatten(kid, at, m.x, m.y);
    });
    heaviest(linksIn(box)).forEach(([, , bytes], i) => {
      const points = spec.lines[i].map(([u, v]) => [x + u, y + v]);
      this.plain.push({ points, bytes });
    });
  }
  item(box) {
    const found = this.items?.find((m) => m.box === box);
    return found ?? (box.parent && this.item(box.parent));
  }
  // Words, colours and lines of what is there; places stay.
  paint() {
    if (!this.items) return;
    const slowest = Math.max(...this.items.map((m) => (m.inside ? 0 : m.box.time)), 1e-300);
    const hits = new Int32Array(this.items.length);
    if (this.match) for (const v of this.match) if (this.seen[v] >= 0) hits[this.seen[v]]++;
    this.items.forEach((m, i) => {
      const { box } = m;
      m.name = m.inside ? listed(box.name, M.total > 0 && time(box.time)) : box.short;
      m.sub = contents(box);
      m.mark = box.leaf ? "" : m.inside ? "▾" : "▸";
      m.share = M.total > 0 ? box.time / slowest : 0;
      m.dim = this.match !== null && !m.inside && !hits[i];
      Object.assign(m, m.inside ? { fill: color(box.stage) } : this.paintOf(box, slowest));
    });
    this.board.at = chosen && this.item(chosen);
    const widest = this.plain.reduce((found, l) => Math.max(found, l.bytes), 1e-300);
    const faint = this.match !== null;
    for (const l of this.plain) Object.assign(l, { faint, wide: 0.8 + (2.6 * l.bytes) / widest });
    this.board.show(this.items, [...this.plain, ...this.strongLines()]);
    const closed = this.items.filter((m) => !m.inside).length;
    byId("shown").textContent = `${closed} boxes of ${counted(M.count, "operator")}`;
  }
  paintOf(box, slowest) {
    if (this.colors === "time") return { fill: "#D55E00", strength: 0.05 + 0.8 * (box.time / slowest) };
    if (this.colors !== "moved") return { fill: color(box.stage), strength: 0.42 };
    const moved = box.nodes.filter((v) => D.other.stage[v] !== stageOf(v)).length;
    return { fill: "#D55E00", strength: (0.8 * moved) / box.nodes.length };
  }
  // Lines of what is chosen to what it reads from, and to what reads from it.
  strongLines() {
    const at = this.board.at;
    if (!at || !chosen) return [];
    const found = new Map();
    for (const forward of [false, true])
      for (const [, v] of linked(chosen, forward)) {
        const other = this.items[this.seen[v]];
        if (other && other !== at) found.set(`${forward}${this.seen[v]}`, [other, forward]);
      }
    const ends = [...found.values()].slice(0, 60).map(([m, out]) => (out ? [at, m] : [m, at]));
    return ends.map(([p, q]) => ({ points: joining(p, q), wide: 2, strong: true }));
  }
  drawMap() {
    const { board, map } = this;
    const [k, c] = [Math.min(map.width / board.right, map.height / board.bottom), map.getContext("2d")];
    const [x0, y0] = [board.view.invertX(0), board.view.invertY(0)];
    const [w, h] = [board.w / board.view.k, board.h / board.view.k];
    map.hidden = x0 <= 0 && y0 <= 0 && x0 + w >= board.right && y0 + h >= board.bottom;
    c.clearRect(0, 0, map.width, map.height);
    for (const m of board.items) {
      c.globalAlpha = m.inside ? 0.25 : 0.9;
      c.fillStyle = m === board.at ? css("--link") : m.fill;
      c.fillRect(m.x * k, m.y * k, Math.max(1, m.w * k), Math.max(1, m.h * k));
    }
    c.globalAlpha = 1;
    c.strokeStyle = css("--link");
    c.lineWidth = 2;
    c.strokeRect(x0 * k, y0 * k, w * k, h * k);
    this.mapScale = k;
  }
  move(e) {
    if (!e.buttons) return;
    const { board, map } = this;
    const scale = (map.width / map.clientWidth / this.mapScale) * board.view.k;
    board.set(board.view.k, board.w / 2 - e.offsetX * scale, board.h / 2 - e.offsetY * scale);
  }
}

const heaviest = (links) => links.toSorted((a, b) => b[2] - a[2]).slice(0, MOST_LINES);

// A curve from one box to another, from the sides that face each other.
function joining(p, q) {
  const middle = (m) => [m.x + m.w / 2, m.y + m.h / 2];
  const [[px, py], [qx, qy]] = [middle(p), middle(q)];
  if (q.y >= p.y + p.h || p.y >= q.y + q.h) {
    const [a, b] = q.y >= p.y + p.h ? [p.y + p.h, q.y] : [p.y, q.y + q.h];
    return [[px, a], [px, (a + b) / 2], [qx, (a + b) / 2], [qx, b]];
  }
  const [a, b] = qx >= px ? [p.x + p.w, q.x] : [p.x, q.x + q.w];
  return [[a, py], [(a + b) / 2, py], [(a + b) / 2, qy], [b, qy]];
}

// Types of operators in a box: [type, [count, compute]], those that take the most first.
function operatorsIn(box) {
  const found = new Map();
  for (const v of box.nodes) {
    const [count, cost] = found.get(D.nodes.op[v]) ?? [0, 0];
    found.set(D.nodes.op[v], [count + 1, cost + M.cost[v]]);
  }
  return [...found].sort(([, a], [, b]) => b[1] - a[1] || b[0] - a[0]);
}

function contents({ leaf, nodes, time: took }) {
  const what = leaf ? D.ops[D.nodes.op[nodes[0]]] : counted(nodes.length, "operator");
  return listed(what, M.total > 0 && time(took));
}

function boxWords(box, open) {
  const stage = box.stage < 0 ? "" : `stage ${box.stage} on ${D.stages[box.stage].device}`;
  const hint = box.leaf ? "" : open ? "click twice or Enter: close" : "click or Enter: open";
  return [box.name, listed(contents(box), stage), hint].filter(Boolean).join("\n");
}
