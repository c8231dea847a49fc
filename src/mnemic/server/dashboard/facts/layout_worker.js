// Arranges a graph outside the page's thread: ForceAtlas2 for each connected part, from given positions, so the same graph looks
// the same; then the parts are placed side by side. Distances are in pixels of a drawing that fills its stage.
import iterate from "../vendor/layout.js";

const PER_NODE = 10; // x, y, dx, dy, old dx, old dy, mass, convergence, size, fixed
const REPORTS = 4;
const LINE = 18; // height of a name
const GAP = 8; // between names
const APART = 24; // between parts
const LARGEST = 1.5; // how much a small graph is enlarged at most

/** The connected parts of a graph, each with its nodes and links as ForceAtlas2 takes them. */
function partsOf({ xs, ys, sizes, edges }) {
  const above = Array.from(xs, (_, i) => i);
  const top = (i) => {
    while (above[i] !== i) i = above[i] = above[above[i]];
    return i;
  };
  for (let i = 0; i < edges.length; i += 2) above[top(edges[i])] = top(edges[i + 1]);
  const parts = new Map();
  xs.forEach((_, i) => (parts.get(top(i)) ?? parts.set(top(i), { names: [], edges: [] }).get(top(i))).names.push(i));
  for (let i = 0; i < edges.length; i += 2) parts.get(top(edges[i])).edges.push(i / 2);
  return [...parts.values()].map((part) => {
    const nodes = new Float32Array(part.names.length * PER_NODE);
    const links = new Float32Array(part.edges.length * 3);
    const places = new Map(part.names.map((name, i) => [name, i * PER_NODE]));
    part.names.forEach((name, i) => nodes.set([xs[name], ys[name], 0, 0, 0, 0, 1, 1, sizes[name], 0], i * PER_NODE));
    part.edges.forEach((edge, i) => {
      const ends = [places.get(edges[edge * 2]), places.get(edges[edge * 2 + 1])];
      links.set([...ends, 1], i * 3);
      for (const end of ends) nodes[end + 6] += 1;
    });
    return { ...part, nodes, links };
  });
}

const settingsOf = (count) => ({
  linLogMode: false,
  outboundAttractionDistribution: false,
  adjustSizes: false,
  edgeWeightInfluence: 1,
  scalingRatio: 10,
  strongGravityMode: true,
  gravity: 0.05,
  slowDown: 1 + Math.log(Math.max(count, 1)),
  barnesHutOptimize: count > 500,
  barnesHutTheta: 1.2,
});

/** Positions of a part's nodes, so large that arrows have about the length that they need. */
function scaled({ names, edges, nodes }, graph) {
  const x = names.map((_, i) => nodes[i * PER_NODE]);
  const y = names.map((_, i) => nodes[i * PER_NODE + 1]);
  const places = new Map(names.map((name, i) => [name, i]));
  const links = edges.map((edge) => [places.get(graph.edges[edge * 2]), places.get(graph.edges[edge * 2 + 1]), graph.lengths[edge]]);
  const [is, wanted] = links.reduce(([is, wanted], [a, b, length]) => [is + Math.hypot(x[a] - x[b], y[a] - y[b]), wanted + length], [0, 0]);
  const scale = is > 0 ? wanted / is : 1;
  // Turned so that it is wide rather than high, as stages and texts are.
  const mean = (of) => names.reduce((sum, _, i) => sum + of(i), 0) / names.length;
  const [middleX, middleY] = [mean((i) => x[i]), mean((i) => y[i])];
  const [xx, yy, xy] = [mean((i) => (x[i] - middleX) ** 2), mean((i) => (y[i] - middleY) ** 2), mean((i) => (x[i] - middleX) * (y[i] - middleY))];
  const [cos, sin] = [Math.cos(Math.atan2(2 * xy, xx - yy) / 2), Math.sin(Math.atan2(2 * xy, xx - yy) / 2)];
  const along = x.map((_, i) => (x[i] * cos + y[i] * sin) * scale);
  const side = links.reduce((sum, [a, b]) => sum + along[b] - along[a], 0) < 0 ? -1 : 1; // most arrows point to the right
  return { names, links, x: along.map((one) => one * side), y: x.map((_, i) => (y[i] * cos - x[i] * sin) * scale) };
}

/** Move nodes until arrows are long enough and names do not cover each other, as far as that goes. */
function untangle({ names, links, x, y }, { sizes, widths }) {
  const half = names.map((name) => Math.max(sizes[name], widths[name] / 2) + GAP / 2); // of a node with its name below
  const high = names.map((name) => sizes[name] + (LINE + GAP) / 2);
  for (let round = 0; round < 200; round++) {
    for (const [a, b, length] of links) {
      const [dx, dy] = [x[b] - x[a], y[b] - y[a]];
      const is = Math.hypot(dx, dy) || 1;
      if (is >= length) continue;
      const step = ((length - is) / is) * 0.25;
      (x[a] -= dx * step), (y[a] -= dy * step), (x[b] += dx * step), (y[b] += dy * step);
    }
    for (let a = 0; a < names.length; a++)
      for (let b = a + 1; b < names.length; b++) {
        const [dx, dy] = [x[b] - x[a], y[b] - y[a]];
        const [overX, overY] = [half[a] + half[b] - Math.abs(dx), high[a] + high[b] - Math.abs(dy)];
        if (overX <= 0 || overY <= 0) continue;
        if (overY <= overX) (y[a] -= (Math.sign(dy) || 1) * overY * 0.5), (y[b] += (Math.sign(dy) || 1) * overY * 0.5);
        else (x[a] -= (Math.sign(dx) || 1) * overX * 0.5), (x[b] += (Math.sign(dx) || 1) * overX * 0.5);
      }
  }
}

/** The box of a part: its nodes and their names. */
function boxOf({ names, x, y }, { sizes, widths }) {
  const ends = (low, high) => [Math.min(...names.map(low)), Math.max(...names.map(high))];
  const half = (name) => Math.max(sizes[name], widths[name] / 2);
  const [left, right] = ends((name, i) => x[i] - half(name), (name, i) => x[i] + half(name));
  const [bottom, top] = ends((name, i) => y[i] - sizes[name] - LINE, (name, i) => y[i] + sizes[name]);
  return { left, bottom, width: right - left + APART, height: top - bottom + APART };
}

/** Rows of boxes, none wider than `most` unless a single box is; low ones stand on each other. The highest come first. */
function rowsOf(boxes, most) {
  const rows = [];
  for (const box of boxes) {
    const fits = (row) => row.columns.find((one) => one.height + box.height <= row.height && box.width <= one.width * 1.2);
    const found = rows.find(fits) ?? rows.find((row) => row.width + box.width <= most);
    const row = found ?? rows[rows.push({ columns: [], width: 0, height: box.height }) - 1];
    const column = fits(row) ?? row.columns[row.columns.push({ boxes: [], width: 0, height: 0 }) - 1];
    row.width += Math.max(0, box.width - column.width);
    column.width = Math.max(column.width, box.width);
    column.height += box.height;
    column.boxes.push(box);
  }
  return { rows, width: Math.max(...rows.map((row) => row.width)), height: rows.reduce((sum, row) => sum + row.height, 0) };
}

/** Place the parts in rows that fill the stage best; returns all positions and the box of the drawing. */
function packed(parts, graph) {
  const [wide, high] = graph.stage;
  const boxes = parts.map((part) => ({ part, ...boxOf(part, graph) })).sort((a, b) => b.height - a.height);
  const area = Math.sqrt(boxes.reduce((sum, box) => sum + box.width * box.height, 0) * (wide / high));
  const fill = ({ width, height }) => Math.max(width / wide, height / high);
  const best = [0.8, 1, 1.15, 1.3, 1.5, 1.8].map((share) => rowsOf(boxes, area * share)).reduce((a, b) => (fill(b) < fill(a) ? b : a));
  const [xs, ys] = [new Float32Array(graph.xs.length), new Float32Array(graph.xs.length)];
  let top = best.height / 2;
  for (const row of best.rows) {
    let left = -row.width / 2;
    for (const column of row.columns) {
      let up = top - (row.height - column.height) / 2;
      for (const box of column.boxes) {
        up -= box.height;
        box.part.names.forEach((name, i) => {
          xs[name] = left + (column.width - box.width + APART) / 2 + box.part.x[i] - box.left;
          ys[name] = up + APART / 2 + box.part.y[i] - box.bottom;
        });
      }
      left += column.width;
    }
    top -= row.height;
  }
  const half = [Math.max(best.width, wide / LARGEST) / 2, Math.max(best.height, high / LARGEST) / 2];
  return { x: xs, y: ys, box: { x: [-half[0], half[0]], y: [-half[1], half[1]] } };
}

/** `widths` are those of the names that are always shown, `lengths` those that arrows need, `stage` is its width and height. */
self.onmessage = ({ data: graph }) => {
  const parts = partsOf(graph);
  const settings = parts.map((part) => settingsOf(part.names.length));
  for (let report = 1, done = 0; report <= REPORTS; report++) {
    for (; done < Math.round((graph.rounds * report) / REPORTS); done++) parts.forEach((part, i) => part.links.length && iterate(settings[i], part.nodes, part.links));
    const placed = parts.map((part) => scaled(part, graph));
    if (graph.small) placed.forEach((part) => untangle(part, graph));
    self.postMessage({ ...packed(placed, graph), done: report === REPORTS });
  }
};
