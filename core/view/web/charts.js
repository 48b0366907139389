"use strict";
// Where time goes, as areas; and when things run, along a time axis.
const ROW = { bar: 26, all: 48, axis: 26 };

class TimeMap {
  constructor(canvas) {
    this.board = new Board(canvas, {
      picked: (m, moved) => m && (moved ? choose(m.box) : this.enter(m.box)),
      words: (m) => boxWords(m.box, false),
      keys: (key) => this.key(key),
      still: true,
    });
    this.at = graph.root;
    this.board.sized = () => this.show();
  }
  key(key) {
    if (key === "Enter" && chosen) this.enter(chosen);
    else if (key === "Escape" && this.at.parent) this.enter(this.at.parent);
    else return false;
    return true;
  }
  enter(box) {
    choose(box);
    if (box.leaf) return;
    this.at = box;
    this.show();
  }
  // Boxes in the one that is entered, and theirs, where there is room.
  show() {
    const { board, at } = this;
    if (!board.w) return;
    const kids = kidsOf(at);
    const inner = kids.reduce((sum, kid) => sum + kidsOf(kid).length, 0) <= MOST_OPEN;
    const open = new Set(inner ? [at, ...kids] : [at]);
    const tree = lib.hierarchy(at, (box) => (open.has(box) ? kidsOf(box) : null));
    tree.each((d) => (d.value = M.total > 0 ? d.data.time : d.data.nodes.length));
    tree.sort((a, b) => b.value - a.value);
    const head = (d) => (d.depth === 1 && d.children ? 24 : 0);
    lib.treemap().size([board.w, board.h]).paddingInner(2).paddingTop(head)(tree);
    const items = tree.descendants().slice(1).filter((d) => d.x1 - d.x0 > 1 && d.y1 - d.y0 > 1);
    board.show(items.map((d) => this.item(d, tree.value)), []);
    byId("within").textContent = at.parent ? `${at.name}, ${time(at.time)}; Escape: all` : "";
    this.mark();
  }
  item({ data: box, value, children, x0, y0, x1, y1 }, all) {
    return {
      box, x: x0, y: y0, w: x1 - x0, h: y1 - y0, inside: !!children,
      name: `${box.short}  ·  ${share(value / all)}`,
      sub: contents(box), fill: color(box.stage), strength: 0.4,
    };
  }
  mark() {
    this.board.at = this.board.items.find((m) => m.box === chosen) ?? null;
    this.board.draw();
  }
}

class Timeline {
  constructor(canvas) {
    const R = D.runs;
    this.end = R.end.reduce((most, each) => Math.max(most, each), 1e-300);
    this.board = new Board(canvas, {
      picked: (m) => this.light(m ? m.batch : null, m),
      words: (m) => `${m.said}\n${time(m.from)} to ${time(m.to)}, ${time(m.to - m.from)} long`,
      keys: (key) => key === "Escape" && (this.light(null), true),
      flat: true,
      top: ROW.axis,
    });
    canvas.style.height = `min(${R.rows.length * ROW.all + ROW.axis + 16}px, 72vh)`;
    this.board.over = (c, colors) => this.axis(c, colors);
    this.board.show(R.row.map((_, i) => this.item(R, i)), []);
  }
  item(R, i) {
    const [from, to, k] = [R.start[i], R.end[i], 1000 / this.end];
    return {
      x: k * from, w: k * (to - from), y: R.row[i] * ROW.all + 18, h: ROW.bar,
      fill: R.fill[i], strength: 0.5, name: R.name[i], said: R.said[i], batch: R.batch[i], from, to,
    };
  }
  // Light up one micro-batch (of a plan for latency: one stage); null: all.
  light(batch, at = null) {
    const { items } = this.board;
    for (const m of items) m.dim = batch !== null && m.batch !== batch;
    const own = items.filter((m) => m.batch === batch);
    Object.assign(this.board, { at }).draw();
    const what = D.runs.scheduled ? "micro-batch" : "stage";
    byId("lit").textContent = batch === null ? `every ${what}` : `${what} ${batch}`;
    if (!own.length) return;
    const [from, to] = [least(own, "from"), own.reduce((end, m) => Math.max(end, m.to), 0)];
    showPanel(at ? at.said : `${what} ${batch}`, "schedule", rowsOf([
      ["this block", at && `${time(at.from)} to ${time(at.to)}`],
      [`${what} ${batch}`, `${time(from)} to ${time(to)}`],
      ["blocks", whole(own.length)],
    ]));
  }
  axis(c, { ink, paper, soft }) {
    const { board } = this;
    c.fillStyle = ink;
    D.runs.rows.forEach((name, i) => fitted(c, name, 6, board.down(i * ROW.all) + 13, board.w - 12));
    c.fillStyle = paper;
    c.fillRect(0, 0, board.w, ROW.axis);
    const at = (x) => (Math.max(0, Math.min(1000, board.view.invertX(x))) * this.end) / 1000;
    const scale = lib.scaleLinear().domain([at(0), at(board.w)]);
    for (const t of scale.ticks(Math.max(2, board.w / 110))) {
      const x = board.view.applyX((1000 * t) / this.end);
      c.fillStyle = soft;
      c.globalAlpha = 0.25;
      c.fillRect(x, ROW.axis, 1, board.h);
      c.globalAlpha = 1;
      if (x + 60 < board.w) fitted(c, time(t), x + 3, 16, 60);
    }
    c.fillStyle = soft;
    c.fillRect(0, ROW.axis - 1, board.w, 1);
  }
}
