// Places of boxes, in the page or in a worker: one container at a time, from the inmost out.
const SPACE = { head: 30, pad: 14, rank: 34, side: 16, gutter: 44 };
// Lines of a container that places heed; those after it cross what lies between.
const HEEDED = 80;
const arranged = new Map();

// A box is { w, h }, or { kids, edges: [[a, b]], right, wide } where it is open; `right`: its kids
// in rows, to this aspect, else along the edges, to the aspect `wide`. Gets w, h, of kids x and y.
function arrange(box) {
  if (!box.kids) return box;
  box.kids.forEach(arrange);
  const sizes = box.kids.map(({ w, h }) => `${w}x${h}`);
  const shape = [box.right, box.wide, box.edges.join(" "), sizes].join("|");
  let found = arranged.get(shape);
  if (!found) arranged.set(shape, (found = placesOf(box)));
  box.kids.forEach((kid, i) => ([kid.x, kid.y] = found.at[i]));
  box.lines = found.lines;
  box.w = found.w;
  box.h = found.h;
  return box;
}

function placesOf({ kids, edges, right, wide }) {
  const boxes = kids.map(({ w, h }) => ({ w, h, x: 0, y: 0, column: 0 }));
  if (right) return inRows(boxes, edges, right);
  const joined = new Set(edges.flat());
  const graph = new lib.Graph();
  graph.setGraph({ nodesep: SPACE.side, ranksep: SPACE.rank, edgesep: 10 });
  graph.setDefaultEdgeLabel(() => ({}));
  boxes.forEach((b, i) => joined.has(i) && graph.setNode(String(i), { width: b.w, height: b.h }));
  for (const [a, b] of edges.slice(0, HEEDED)) graph.setEdge(String(a), String(b), {});
  if (joined.size) lib.layout(graph);
  for (const i of joined) {
    const { x, y } = graph.node(String(i));
    Object.assign(boxes[i], { x: x - boxes[i].w / 2, y: y - boxes[i].h / 2 });
  }
  const linked = boxes.filter((_, i) => joined.has(i));
  const columns = inColumns(linked, wide);
  const lines = edges.map(([a, b], i) => {
    const [p, q] = [boxes[a], boxes[b]];
    if (p.column !== q.column || p.y > q.y) return around(p, q, columns);
    if (i >= HEEDED) return [[p.x + p.w / 2, p.y + p.h], [q.x + q.w / 2, q.y]];
    const shift = columns[p.column];
    return graph.edge(String(a), String(b)).points.map(({ x, y }) => [x + shift.x, y + shift.y]);
  });
  below(boxes.filter((_, i) => !joined.has(i)), linked);
  return finished(boxes, lines);
}

// Stages one after another, in as many rows as leave them the largest.
function inRows(boxes, edges, aspect) {
  const all = boxes.reduce((sum, b) => sum + b.w + SPACE.gutter, 0);
  const fill = (limit) => {
    let [x, y, row, bottom] = [0, 0, 0, 0];
    for (const b of boxes) {
      if (x && x + b.w > limit) [x, y, row] = [0, bottom + SPACE.gutter, row + 1];
      Object.assign(b, { x, y, row });
      x += b.w + SPACE.gutter;
      bottom = Math.max(bottom, y + b.h);
    }
    return Math.max(most(boxes, "x", "w"), most(boxes, "y", "h") * aspect);
  };
  const limits = [1, 2, 3, 4, 6, 8, 12].map((rows) => (1.05 * all) / rows);
  fill(limits.reduce((best, limit) => (fill(limit) < fill(best) ? limit : best)));
  const lines = edges.map(([a, b]) => {
    const [p, q] = [boxes[a], boxes[b]];
    const [x, z] = [p.x + p.w / 2, q.x + q.w / 2];
    if (b === a + 1 && p.y === q.y) return [[p.x + p.w, p.y + 22], [q.x, q.y + 22]];
    if (p.y === q.y) return [[x, p.y], [x, p.y - 24], [z, q.y - 24], [z, q.y]];
    const end = most(boxes, "x", "w") + SPACE.gutter / 2;
    const [y, v] = [p.y + 22, q.y - 20];
    if (q.row > p.row + 1) return [[p.x + p.w, y], [end, y], [end, v], [z, v], [z, q.y]];
    const [from, to] = p.y < q.y ? [p.y + p.h, q.y] : [p.y, q.y + q.h];
    const middle = p.y < q.y ? q.y - SPACE.gutter / 2 : p.y - SPACE.gutter / 2;
    return [[x, from], [x, middle], [z, middle], [z, to]];
  });
  return finished(boxes, lines);
}

// Cut what is much longer than wide into columns beside each other, like text.
function inColumns(boxes, wide) {
  const rows = [];
  let bottom = -Infinity;
  for (const b of [...boxes].sort((p, q) => p.y + p.h / 2 - q.y - q.h / 2)) {
    if (b.y >= bottom) rows.push([]);
    rows.at(-1).push(b);
    bottom = Math.max(bottom, b.y + b.h);
  }
  const sizes = rows.map((row) => [most(row, "x", "w") - least(row, "x"), most(row, "y", "h") - least(row, "y")]);
  const area = sizes.reduce((sum, [w, h]) => sum + w * (h + SPACE.rank), 0);
  const count = Math.max(1, Math.round(bottom / Math.sqrt(area / wide)));
  const found = [];
  for (const row of rows) {
    const number = Math.floor(((least(row, "y") + most(row, "y", "h")) / 2 / bottom) * count);
    (found[number] ??= { top: least(row, "y"), boxes: [] }).boxes.push(...row);
  }
  const columns = found.filter(Boolean);
  let x = 0;
  columns.forEach((column, number) => {
    Object.assign(column, { x: x - least(column.boxes, "x"), y: -column.top, left: x });
    for (const b of column.boxes) Object.assign(b, { x: b.x + column.x, y: b.y + column.y, column: number });
    column.right = most(column.boxes, "x", "w");
    x = column.right + SPACE.gutter;
  });
  return columns;
}
const least = (boxes, side) => Math.min(...boxes.map((b) => b[side]));
const most = (boxes, side, size) => Math.max(...boxes.map((b) => b[side] + b[size]));

// A line from one column to another, or back up: through the gutter beside the second box.
function around(p, q, columns) {
  const [x, y, z, end] = [p.x + p.w / 2, p.y + p.h, q.x + q.w / 2, q.y];
  const back = p.column > q.column || (p.column === q.column && p.y > q.y);
  const gutter = back ? columns[q.column].right + 14 : columns[q.column].left - SPACE.gutter / 2;
  const step = SPACE.rank / 3;
  return [[x, y], [x, y + step], [gutter, y + step], [gutter, end - step], [z, end - step], [z, end]];
}

// What nothing leads to or from stands in rows below the others.
function below(alone, linked) {
  let y = linked.length ? most(linked, "y", "h") + SPACE.rank : 0;
  const each = Math.ceil(Math.sqrt(3 * alone.length));
  for (let i = 0; i < alone.length; i += each) {
    let x = 0;
    const row = alone.slice(i, i + each);
    for (const b of row) {
      Object.assign(b, { x, y });
      x += b.w + SPACE.side;
    }
    y = most(row, "y", "h") + SPACE.side;
  }
}

// Leave room for the head, and around.
function finished(boxes, lines) {
  const every = [...boxes, ...lines.flat().map(([x, y]) => ({ x, y, w: 0, h: 0 }))];
  const [x0, y0] = [least(every, "x") - SPACE.pad, least(every, "y") - SPACE.head];
  return {
    at: boxes.map((b) => [b.x - x0, b.y - y0]),
    lines: lines.map((line) => line.map(([x, y]) => [x - x0, y - y0])),
    w: most(every, "x", "w") - x0 + SPACE.pad,
    h: most(every, "y", "h") - y0 + SPACE.pad,
  };
}

if (typeof document === "undefined") onmessage = ({ data }) => postMessage(arrange(data));
