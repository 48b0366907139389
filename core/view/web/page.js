"use strict";
// Start: themes, tabs, search and filters, and what is chosen in all views.
let graph = null;
let timeMap = null;
let timeline = null;
let chosen = null;
const root = document.documentElement;

function theme(name) {
  root.dataset.theme = name;
  for (const board of boards) board.draw();
}

function choose(box, look = true) {
  chosen = box;
  describe(box);
  graph.paint();
  timeMap?.mark();
  for (const b of query("[data-stage]"))
    b.setAttribute("aria-pressed", String(box?.kind === "stage" && +b.dataset.stage === box.stage));
  const item = look && box && graph.item(box);
  if (item && graph.items) graph.board.seek(item);
}

const tabs = () => [...query("[role=tab]")].map((each) => each.id.slice(4));
function tab(name) {
  for (const each of tabs()) {
    byId(`tab-${each}`).ariaSelected = String(each === name);
    byId(`view-${each}`).hidden = each !== name;
  }
  root.dataset.tab = name;
  for (const board of boards) board.resize();
}

// Stages and borders of the strip lead into the graph.
function startStrip() {
  for (const b of query("[data-stage]"))
    b.onclick = () => {
      const first = graph.root.nodes.find((v) => stageOf(v) === +b.dataset.stage);
      const stage = wayTo(graph.root, first).find((box) => box.kind === "stage");
      tab("graph");
      choose(stage, false);
      byId("graph").focus({ preventScroll: true });
      return graph.toggle(stage, true);
    };
  for (const b of query("[data-border]")) b.onclick = () => describeBorder(+b.dataset.border);
  for (const s of query(".slowest")) s.parentNode.scrollIntoView({ inline: "nearest", block: "nearest" });
}

const search = { hits: [], at: -1, texts: null };
function find() {
  search.texts ??= D.nodes.name.map((name, v) => `${name} ${D.ops[D.nodes.op[v]]}`.toLowerCase());
  const words = byId("search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const [stage, op] = [byId("of-stage").value, byId("of-op").value];
  const all = !words.length && !stage && !op;
  search.at = -1;
  const fits = (v) =>
    (!stage || stageOf(v) === +stage) &&
    (!op || D.nodes.op[v] === +op) &&
    words.every((word) => search.texts[v].includes(word));
  search.hits = all ? [] : graph.root.nodes.filter(fits);
  graph.match = all ? null : search.hits;
  byId("found").textContent = all ? "" : `${whole(search.hits.length)} found`;
  graph.paint();
}

function next(step) {
  const count = search.hits.length;
  if (!count) return null;
  search.at = (Math.max(search.at, step > 0 ? -1 : 0) + step + count) % count;
  byId("found").textContent = `${whole(search.at + 1)} of ${whole(count)}`;
  return graph.reveal(search.hits[search.at]);
}

function startSearch() {
  const field = byId("search");
  field.oninput = find;
  field.onkeydown = (e) => {
    if (e.key === "Enter") next(e.shiftKey ? -1 : 1);
    else if (e.key === "Escape") {
      field.value = "";
      find();
      byId("graph").focus();
    }
  };
  byId("next").onclick = () => next(1);
  byId("previous").onclick = () => next(-1);
  const options = (id, pairs) => {
    byId(id).append(...pairs.map(([value, textContent]) => make("option", { value, textContent })));
    byId(id).onchange = find;
    byId(id).hidden = pairs.length < 2;
  };
  options("of-stage", D.stages.map((_, i) => [i, `stage ${i}`]));
  const ops = operatorsIn(graph.root).sort(([, a], [, b]) => b[0] - a[0]);
  options("of-op", ops.map(([op, [count]]) => [op, `${D.ops[op]} (${whole(count)})`]));
}

// What colours mean, where they are of the graph.
function legend() {
  graph.colors = byId("colors").value;
  const stages = D.stages.map((s, i) => [color(i), `stage ${i}`]);
  const keys = {
    stage: stages.length > 8 ? [...stages.slice(0, 8), ["none", "and again"]] : stages,
    time: [["#D55E0014", "little time"], ["#D55E00", "much time"]],
    moved: [["#D55E0014", "stays"], ["#D55E00", "in another stage"]],
  };
  const square = (fill) => make("i", { style: `background: ${fill}` });
  const key = ([fill, text]) => make("span", { className: "key" }, square(fill), text);
  byId("legend").replaceChildren(...keys[graph.colors].map(key));
  graph.paint();
}

function keys(e) {
  const typing = document.activeElement?.matches("input, select");
  if (typing || e.ctrlKey || e.metaKey || e.altKey) return;
  const does = { "/": () => graph && (tab("graph"), byId("search").focus()), f: fit, n: () => next(1), p: () => next(-1) };
  if (!does[e.key]) return;
  does[e.key]();
  e.preventDefault();
}

const current = () => boards.find((board) => board.canvas.offsetParent) ?? boards[0];
const fit = () => current()?.fit();

// Tables are sorted by a click on a heading.
function sortable(table) {
  const heads = [...table.querySelectorAll("th")];
  heads.forEach((th, column) => {
    const button = make("button", { type: "button", textContent: th.textContent });
    th.replaceChildren(button);
    button.onclick = () => {
      const up = th.ariaSort !== "ascending";
      for (const other of heads) other.ariaSort = null;
      th.ariaSort = up ? "ascending" : "descending";
      const key = (tr) => tr.cells[column].dataset.value ?? tr.cells[column].textContent;
      const compare = (x, y) => (isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y);
      const rows = [...table.tBodies[0].rows].sort((a, b) => compare(key(a), key(b)));
      table.tBodies[0].replaceChildren(...(up ? rows : rows.reverse()));
    };
  });
}

async function startGraph() {
  index();
  graph = new GraphView(byId("graph"), byId("map"));
  startSearch();
  startStrip();
  if (D.other) byId("colors").append(make("option", { textContent: "moved", selected: true }));
  if (!D.stages.length && M.total > 0) byId("colors").value = "time";
  byId("colors").onchange = legend;
  describe(null);
  await graph.begin();
  legend();
  timeMap = new TimeMap(byId("areas"));
}

async function start() {
  theme(matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  byId("theme").onclick = () => theme(root.dataset.theme === "dark" ? "light" : "dark");
  query("table.sorted").forEach(sortable);
  for (const empty of query("[data-empty]")) {
    byId(empty.id.replace("view", "tab")).remove();
    empty.remove();
  }
  for (const each of tabs()) byId(`tab-${each}`).onclick = () => tab(each);
  tab(tabs()[0]);
  D = await unpacked(byId("data").textContent);
  if (D.nodes) await startGraph();
  if (D.runs) {
    timeline = new Timeline(byId("runs"));
    byId("batch-all").onclick = () => timeline.light(null);
    timeline.light(null);
  }
  const png = () => current().save(`${D.model.replace(/[^\w.-]+/g, "-")}-${root.dataset.tab}.png`);
  const enlarge = (factor) => () => current().enlarge(factor);
  const does = { fit, png, in: enlarge(1.4), out: enlarge(0.7) };
  for (const b of query("[data-zoom]")) b.onclick = does[b.dataset.zoom];
  document.addEventListener("keydown", keys);
  root.dataset.shown = String(Math.round(performance.now()));
}
start();
