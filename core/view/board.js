"use strict";
// Draws what the JSON of the page holds: the graph, box by box, and when things run.
const D = JSON.parse(document.getElementById("data").textContent);
const root = document.documentElement,
  tip = document.getElementById("tip");
const css = (name) => getComputedStyle(root).getPropertyValue(name).trim();
const BOX = 150,
  HIGH = 36,
  GAP = 16,
  DROP = 36,
  ROW = 24;
const SWINGS = [0, 1, -1, 1.6, -1.6, 2.4, -2.4],
  HALF = 0.46;
const boards = [];

function theme(name) {
  root.dataset.theme = name;
  for (const board of boards) board.draw();
}
theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
document.getElementById("theme").onclick = () =>
  theme(root.dataset.theme === "dark" ? "light" : "dark");

function time(value) {
  if (value === null || value === undefined) return "not priced";
  if (!D.seconds || value === 0) return String(+value.toPrecision(4));
  for (const [factor, unit] of [
    [1e6, "us"],
    [1e3, "ms"],
    [1, "s"],
  ])
    if (value * factor < 999.5) return +(value * factor).toPrecision(3) + " " + unit;
  return value.toFixed(0) + " s";
}
function size(value) {
  for (const [factor, unit] of [
    [1e12, "TB"],
    [1e9, "GB"],
    [1e6, "MB"],
    [1e3, "kB"],
  ])
    if (value >= factor) return +(value / factor).toPrecision(4) + " " + unit;
  return +value.toPrecision(4) + " B";
}
// The largest of what is said of things; there may be too many for the arguments of a call.
const most = (list, of, least) => list.reduce((found, each) => Math.max(found, of(each)), least);
const color = (stage) => D.palette[(stage < 0 ? D.palette.length - 1 : stage) % D.palette.length];

// A canvas with things at places, that can be moved and enlarged.
class Board {
  constructor(canvas, picked) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.picked = picked;
    this.items = [];
    this.edges = [];
    this.x = 0;
    this.y = 0;
    this.scale = 1;
    this.at = -1;
    this.stretch = false;
    boards.push(this);
    canvas.tabIndex = 0;
    let drag = null,
      moved = false;
    canvas.onpointerdown = (e) => {
      drag = [e.clientX, e.clientY];
      moved = false;
      canvas.setPointerCapture(e.pointerId);
    };
    canvas.onpointermove = (e) => {
      if (drag) {
        if (Math.abs(e.clientX - drag[0]) + Math.abs(e.clientY - drag[1]) > 3) moved = true;
        if (moved) {
          this.x -= (e.clientX - drag[0]) / this.scale;
          this.y -= (e.clientY - drag[1]) / this.down();
          drag = [e.clientX, e.clientY];
          this.draw();
        }
      } else this.hover(e);
    };
    canvas.onpointerup = (e) => {
      drag = null;
      if (!moved) {
        const i = this.find(e);
        if (i >= 0) {
          this.choose(i);
          this.picked(this.items[i]);
        }
      }
    };
    canvas.onpointerleave = () => {
      tip.style.display = "none";
    };
    canvas.addEventListener(
      "wheel",
      (e) => {
        if (!e.ctrlKey && !e.shiftKey && document.activeElement !== canvas) return;
        e.preventDefault();
        const r = canvas.getBoundingClientRect();
        this.zoom(Math.exp(-e.deltaY / 400), e.clientX - r.left, e.clientY - r.top);
      },
      { passive: false },
    );
    canvas.onkeydown = (e) => {
      const step = 80 / this.scale,
        keys = {
          ArrowLeft: [-step, 0],
          ArrowRight: [step, 0],
          ArrowUp: [0, -80 / this.down()],
          ArrowDown: [0, 80 / this.down()],
        };
      if (keys[e.key]) {
        this.x += keys[e.key][0];
        this.y += keys[e.key][1];
        this.draw();
      } else if (e.key === "+" || e.key === "=") this.zoom(1.3);
      else if (e.key === "-") this.zoom(1 / 1.3);
      else if (e.key === "0") this.fit();
      else if (e.key === "n" || e.key === "p")
        this.choose(
          (this.at + (e.key === "n" ? 1 : this.items.length - 1) + this.items.length) %
            this.items.length,
          true,
        );
      else if (e.key === "Enter" && this.at >= 0) this.picked(this.items[this.at]);
      else if (e.key === "Escape") this.picked(null);
      else return;
      e.preventDefault();
    };
    new ResizeObserver(() => this.resize()).observe(canvas);
  }
  down() {
    return this.stretch ? 1 : this.scale;
  }
  show(items, edges) {
    this.items = items;
    this.edges = edges;
    this.at = -1;
    this.right = most(items, (i) => i.x + i.w, 1);
    this.bottom = most(items, (i) => i.y + i.h, 1);
    this.resize();
    this.fit();
  }
  resize() {
    const r = this.canvas.getBoundingClientRect(),
      ratio = devicePixelRatio || 1;
    this.w = r.width;
    this.h = r.height;
    this.canvas.width = Math.round(r.width * ratio);
    this.canvas.height = Math.round(r.height * ratio);
    this.ratio = ratio;
    this.draw();
  }
  fit() {
    const full = (this.w - 20) / this.right;
    this.scale = this.stretch ? full : Math.max(0.5, Math.min(1.2, full));
    // What is wider than the page begins where its first box is in the middle.
    const seen = this.w / this.scale,
      first = this.items[0],
      left = -10 / this.scale;
    this.x = this.stretch
      ? left
      : this.right <= seen - 20 / this.scale
        ? (this.right - seen) / 2
        : Math.max(left, Math.min(first.x + first.w / 2 - seen / 2, this.right - seen - left));
    this.y = -10 / this.down();
    this.draw();
  }
  zoom(factor, cx = this.w / 2, cy = this.h / 2) {
    const before = this.scale,
      next = Math.max(0.01, Math.min(this.stretch ? 1e9 : 6, before * factor));
    this.x += cx / before - cx / next;
    if (!this.stretch) this.y += cy / before - cy / next;
    this.scale = next;
    this.draw();
  }
  center(i) {
    const item = this.items[i];
    if (!this.stretch) this.scale = Math.max(this.scale, 0.9);
    this.x = item.x + item.w / 2 - this.w / this.scale / 2;
    this.y = item.y + item.h / 2 - this.h / this.down() / 2;
  }
  choose(i, move = false) {
    this.at = i;
    if (move) this.center(i);
    document.getElementById("said").textContent = this.items[i].tip();
    this.draw();
  }
  find(e) {
    const r = this.canvas.getBoundingClientRect(),
      x = (e.clientX - r.left) / this.scale + this.x,
      y = (e.clientY - r.top) / this.down() + this.y;
    for (let i = this.items.length - 1; i >= 0; i--) {
      const m = this.items[i];
      if (x >= m.x && x <= m.x + m.w && y >= m.y && y <= m.y + m.h) return i;
    }
    return -1;
  }
  hover(e) {
    const i = this.find(e);
    tip.style.display = i < 0 ? "none" : "block";
    if (i < 0) return;
    tip.textContent = this.items[i].tip();
    const w = tip.offsetWidth,
      h = tip.offsetHeight;
    tip.style.left = Math.max(4, Math.min(e.clientX + 14, innerWidth - w - 4)) + "px";
    tip.style.top = (e.clientY + 18 + h > innerHeight ? e.clientY - h - 10 : e.clientY + 18) + "px";
  }
  text(text, x, y, wide, font) {
    const c = this.context;
    c.font = font;
    let shown = text;
    if (c.measureText(shown).width > wide) {
      let low = 0,
        high = text.length;
      while (low < high) {
        const half = (low + high + 1) >> 1,
          k = Math.ceil(half / 2);
        const t = text.slice(0, k) + "…" + text.slice(text.length - (half - k));
        if (c.measureText(t).width <= wide) low = half;
        else high = half - 1;
      }
      if (low < 2) return;
      const k = Math.ceil(low / 2);
      shown = text.slice(0, k) + "…" + text.slice(text.length - (low - k));
    }
    c.fillText(shown, x, y);
  }
  draw() {
    if (!this.w || !this.items.length) return;
    const c = this.context,
      ink = css("--ink"),
      paper = css("--paper"),
      s = this.scale,
      d = this.down();
    c.setTransform(this.ratio, 0, 0, this.ratio, 0, 0);
    c.fillStyle = paper;
    c.fillRect(0, 0, this.w, this.h);
    const px = (v) => (v - this.x) * s,
      py = (v) => (v - this.y) * d;
    c.strokeStyle = ink;
    c.globalAlpha = 0.45;
    for (const e of this.edges) {
      const a = this.items[e.a],
        b = this.items[e.b];
      const x1 = px(a.x + a.w / 2),
        y1 = py(a.y + a.h),
        x2 = px(b.x + b.w / 2),
        y2 = py(b.y);
      const far = 50 + Math.abs(e.aside || 0) * s;
      if (
        Math.max(x1, x2) < -far ||
        Math.min(x1, x2) > this.w + far ||
        Math.max(y1, y2) < -50 ||
        Math.min(y1, y2) > this.h + 50
      )
        continue;
      const bend = Math.max(Math.abs(y2 - y1) / 2, (DROP * d) / 2),
        aside = (e.aside || 0) * s;
      c.lineWidth = e.wide * Math.min(1, Math.max(0.4, s));
      c.beginPath();
      c.moveTo(x1, y1);
      c.bezierCurveTo(x1 + aside, y1 + bend, x2 + aside, y2 - bend, x2, y2);
      c.stroke();
    }
    c.globalAlpha = 1;
    c.lineWidth = 1;
    this.items.forEach((m, i) => {
      const x = px(m.x),
        y = py(m.y),
        w = Math.max(m.w * s, 0.5),
        h = m.h * d;
      if (x > this.w || y > this.h || x + w < 0 || y + h < 0) return;
      c.fillStyle = paper;
      c.fillRect(x, y, w, h);
      c.globalAlpha = 0.45;
      c.fillStyle = m.fill;
      c.fillRect(x, y, w, h);
      c.globalAlpha = 1;
      c.lineWidth = i === this.at ? 3 : 1;
      c.strokeStyle = ink;
      if (w > 2 || i === this.at) c.strokeRect(x, y, w, h);
      c.fillStyle = ink;
      const left = Math.max(x, 0),
        room = Math.min(x + w, this.w) - left - 8;
      if (room < 8) return;
      if (m.sub === undefined)
        this.text(m.name, left + 4, y + h / 2 + 4, room, "11px Helvetica, Arial, sans-serif");
      else if (h >= 14) {
        const f = Math.max(7, Math.min(12, 11 * s));
        this.text(m.name, left + 5 * s, y + 14 * s, room, f + "px Helvetica, Arial, sans-serif");
        this.text(
          m.sub,
          left + 5 * s,
          y + 29 * s,
          room,
          f * 0.9 + "px Helvetica, Arial, sans-serif",
        );
      }
    });
    for (const [y, name] of this.rows || []) {
      c.font = "11px Helvetica, Arial, sans-serif";
      const w = c.measureText(name).width;
      c.globalAlpha = 0.8;
      c.fillStyle = paper;
      c.fillRect(0, py(y) + 2, w + 8, 15);
      c.globalAlpha = 1;
      c.fillStyle = ink;
      c.fillText(name, 4, py(y) + 14);
    }
  }
}
