"use strict";
// A canvas of boxes and lines, that can be moved and enlarged.
const boards = [];
const FONT = "Helvetica, Arial, 'Liberation Sans', sans-serif";
const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

class Board {
  // picked(item, again): a click; pointed(item): its words; `flat`: enlarges along x alone.
  constructor(canvas, { picked, words, keys, flat = false, still = false, top = 0 }) {
    Object.assign(this, { canvas, picked, words, keys, flat, still, top });
    Object.assign(this, { items: [], lines: [], at: null, view: lib.zoomIdentity });
    boards.push(this);
    canvas.tabIndex = 0;
    this.zoom = lib.zoom().scaleExtent([0.02, flat ? 1e6 : 5]).clickDistance(4);
    this.zoom.on("zoom", (e) => {
      this.view = e.transform;
      this.draw();
    });
    const wheel = (e) => e.ctrlKey || document.activeElement === canvas;
    this.zoom.filter((e) => (e.type === "wheel" ? wheel(e) : !e.button));
    if (!still) lib.select(canvas).call(this.zoom).on("dblclick.zoom", null);
    canvas.onclick = (e) => {
      canvas.focus({ preventScroll: true });
      this.picked(this.find(e));
    };
    canvas.onpointermove = (e) => {
      const m = e.buttons ? null : this.find(e);
      canvas.style.cursor = m ? "pointer" : "";
      showTip(m ? this.words(m) : "", e.clientX, e.clientY);
    };
    canvas.onpointerleave = () => showTip("");
    canvas.onkeydown = (e) => this.key(e);
    new ResizeObserver(() => this.resize()).observe(canvas);
  }
  key(e) {
    if (e.ctrlKey || e.metaKey || e.altKey) return;
    const steps = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (steps[e.key]) this.step(...steps[e.key]);
    else if (e.key === "+" || e.key === "=") this.enlarge(1.3);
    else if (e.key === "-") this.enlarge(1 / 1.3);
    else if (!this.keys?.(e.key)) return;
    e.preventDefault();
  }
  // The nearest box in a direction; what lies aside counts twice.
  step(dx, dy) {
    const middle = (m) => [m.x + m.w / 2, m.inside ? m.y + 12 : m.y + m.h / 2];
    const [x, y] = this.at ? middle(this.at) : [-1e9 * dx, -1e9 * dy];
    let [best, least] = [null, Infinity];
    for (const m of this.items) {
      const [u, v] = middle(m);
      const ahead = (u - x) * dx + (v - y) * dy;
      const aside = Math.abs((u - x) * dy) + Math.abs((v - y) * dx);
      if (m === this.at || ahead <= 0.5 || (this.at && aside > 2 * ahead && aside > m.w)) continue;
      if (ahead + 2 * aside < least) [best, least] = [m, ahead + 2 * aside];
    }
    if (best) this.picked(best, true);
  }
  show(items, lines) {
    this.items = items;
    this.lines = lines;
    this.right = items.reduce((found, m) => Math.max(found, m.x + m.w), 1);
    this.bottom = items.reduce((found, m) => Math.max(found, m.y + m.h), 1);
    this.draw();
  }
  resize() {
    const { width, height } = this.canvas.getBoundingClientRect();
    if (!width || (width === this.w && height === this.h)) return;
    const first = !this.w;
    this.ratio = devicePixelRatio || 1;
    Object.assign(this, { w: width, h: height });
    this.canvas.width = Math.round(width * this.ratio);
    this.canvas.height = Math.round(height * this.ratio);
    this.sized?.();
    if (first) this.fit();
    this.draw();
  }
  set(k, x, y) {
    lib.select(this.canvas).call(this.zoom.transform, lib.zoomIdentity.translate(x, y).scale(k));
  }
  // Show all, or one box with what is in it.
  fit(box = { x: 0, y: 0, w: this.right, h: this.bottom }, most = 1.25) {
    if (!this.w || this.still) return;
    const k = Math.min(most, (this.w - 24) / box.w, this.flat ? 1e9 : (this.h - 24) / box.h);
    const y = this.flat ? 0 : (this.h - box.h * k) / 2 - box.y * k;
    this.set(k, (this.w - box.w * k) / 2 - box.x * k, y);
  }
  // Move until a box is in sight, and can be read.
  seek(m) {
    const [x, y] = [this.view.applyX(m.x), this.down(m.y)];
    const inside = x >= 0 && y >= 0 && x + m.w * this.view.k <= this.w && y + 20 <= this.h;
    if (this.still || (inside && this.view.k >= 0.55)) return;
    const k = Math.max(this.view.k, 0.8);
    const up = (this.h - Math.min(m.h * k, this.h - 40)) / 2 - m.y * k;
    this.set(k, Math.max(this.w / 2 - (m.x + m.w / 2) * k, 20 - m.x * k), up);
  }
  enlarge(factor) {
    lib.select(this.canvas).call(this.zoom.scaleBy, factor);
  }
  down(y) {
    return this.flat ? y + Math.min(0, this.view.y) + this.top : this.view.applyY(y);
  }
  find(e) {
    const r = this.canvas.getBoundingClientRect();
    const [x, y] = [this.view.invertX(e.clientX - r.left), e.clientY - r.top];
    const inX = (m) => x >= m.x && x <= m.x + m.w;
    const inY = (m) => y >= this.down(m.y) && y <= this.down(m.y + m.h);
    return this.items.findLast((m) => inX(m) && inY(m)) ?? null;
  }
  draw(c = this.canvas.getContext("2d")) {
    if (!this.w) return;
    const names = ["ink", "paper", "soft", "link", "tint"];
    const colors = Object.fromEntries(names.map((name) => [name, css(`--${name}`)]));
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = colors.paper;
    c.fillRect(0, 0, this.w, this.h);
    const curve = lib.line(([x]) => this.view.applyX(x), ([, y]) => this.down(y)).curve(lib.curveBasis);
    for (const m of this.items) if (m.inside) this.box(c, m, colors);
    for (const l of this.lines) {
      c.strokeStyle = l.strong ? colors.link : colors.ink;
      c.globalAlpha = l.strong ? 0.9 : l.faint ? 0.12 : 0.4;
      c.lineWidth = Math.max(0.5, l.wide * Math.min(1, this.view.k));
      c.beginPath();
      curve.context(c)(l.points);
      c.stroke();
    }
    c.globalAlpha = 1;
    for (const m of this.items) if (!m.inside) this.box(c, m, colors);
    this.over?.(c, colors);
  }
  box(c, m, { ink, paper, soft, link, tint }) {
    const [x, y] = [this.view.applyX(m.x), this.down(m.y)];
    const k = this.view.k;
    const w = Math.max(m.w * k, 0.6);
    const h = this.flat ? m.h : m.h * k;
    if (x > this.w || y > this.h || x + w < 0 || y + h < 0) return;
    c.globalAlpha = m.dim ? 0.25 : 1;
    c.beginPath();
    c.roundRect(x, y, w, h, Math.min(6, 5 * k, w / 3));
    c.fillStyle = m.inside ? tint : paper;
    c.fill();
    c.globalAlpha *= m.inside ? 0.08 : (m.strength ?? 0.42);
    c.fillStyle = m.fill;
    c.fill();
    c.globalAlpha = m.dim ? 0.25 : 1;
    c.lineWidth = m === this.at ? 3 : m.inside ? 1.5 : 1;
    c.strokeStyle = m === this.at ? link : m.inside ? m.fill : soft;
    if (w > 3 || m === this.at) c.stroke();
    c.fillStyle = ink;
    const scale = this.flat || this.still ? 1 : Math.min(1.15, Math.max(k, m.inside ? 0.7 : 0));
    const left = Math.max(x, 0) + 6 * scale;
    const room = Math.min(x + w, this.w) - left - 6 * scale;
    if (room > 10 && h >= 14 * scale && scale > 0.4) {
      const font = `${m.mark ? "bold " : ""}${12 * scale}px ${FONT}`;
      fitted(c, [m.mark, m.name].filter(Boolean).join(" "), left, y + 16 * scale, room, font);
      const more = !m.inside && h >= 32 * scale;
      if (more) fitted(c, m.sub, left, y + 31 * scale, room, `${11 * scale}px ${FONT}`);
      if (more && m.share > 0) c.fillRect(left, y + h - 5 * scale, Math.max(1, room * m.share), 2 * scale);
    }
    c.globalAlpha = 1;
  }
  // All of it, as a picture in a file.
  save(name) {
    const { view, w, h, ratio } = this;
    const k = Math.min(1, 6000 / this.right, 6000 / this.bottom);
    const all = { w: this.right * k + 40, h: this.bottom * k + 40, view: lib.zoomIdentity.translate(20, 20).scale(k) };
    Object.assign(this, this.flat || this.still ? {} : all, { ratio: 2 });
    const canvas = make("canvas", { width: this.w * 2, height: this.h * 2 });
    this.draw(canvas.getContext("2d"));
    Object.assign(this, { view, w, h, ratio });
    canvas.toBlob((blob) => make("a", { href: URL.createObjectURL(blob), download: name }).click());
  }
}

// A text that has no more room than it is wide, without its middle where it has less.
const widths = new Map();
function fitted(c, text, x, y, room, font = `12px ${FONT}`) {
  const key = `${font}|${Math.round(room)}|${text}`;
  c.font = font;
  const cut = (n) => (n < text.length ? text.slice(0, (n + 1) >> 1) + "…" + text.slice(text.length - (n >> 1)) : text);
  let [low, high] = [0, widths.has(key) ? 0 : text.length];
  while (low < high) {
    const half = (low + high + 1) >> 1;
    if (c.measureText(cut(half)).width <= room) low = half;
    else high = half - 1;
  }
  if (!widths.has(key)) widths.set(key, low < Math.min(2, text.length) ? "" : cut(low));
  c.fillText(widths.get(key), x, y);
}

function showTip(text, x = 0, y = 0) {
  const tip = byId("tip");
  tip.style.display = text ? "block" : "none";
  tip.textContent = text;
  tip.style.left = Math.max(4, Math.min(x + 14, innerWidth - tip.offsetWidth - 4)) + "px";
  const below = y + 18 + tip.offsetHeight < innerHeight;
  tip.style.top = (below ? y + 18 : Math.max(4, y - tip.offsetHeight - 10)) + "px";
}
