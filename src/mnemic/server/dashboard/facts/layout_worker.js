// Arranges a graph outside the page's thread: ForceAtlas2 from given positions, so the same graph looks the same.
import iterate from "../vendor/layout.js";

const PER_NODE = 10; // x, y, dx, dy, old dx, old dy, mass, convergence, size, fixed
const REPORTS = 4;

self.onmessage = ({ data: { id, xs, ys, sizes, edges, rounds } }) => {
  const nodes = new Float32Array(xs.length * PER_NODE);
  const links = new Float32Array((edges.length / 2) * 3);
  for (let i = 0; i < xs.length; i++) {
    const at = i * PER_NODE;
    nodes[at] = xs[i];
    nodes[at + 1] = ys[i];
    nodes[at + 6] = 1;
    nodes[at + 7] = 1;
    nodes[at + 8] = sizes[i];
  }
  for (let i = 0; i < edges.length; i += 2) {
    const [a, b] = [edges[i] * PER_NODE, edges[i + 1] * PER_NODE];
    links.set([a, b, 1], (i / 2) * 3);
    nodes[a + 6] += 1;
    nodes[b + 6] += 1;
  }
  const settings = {
    linLogMode: false,
    outboundAttractionDistribution: false,
    adjustSizes: false,
    edgeWeightInfluence: 1,
    scalingRatio: 10,
    strongGravityMode: true,
    gravity: 0.05,
    slowDown: 1 + Math.log(Math.max(xs.length, 1)),
    barnesHutOptimize: xs.length > 500,
    barnesHutTheta: 1.2,
  };
  for (let done = 0, report = 1; done < rounds; done++) {
    iterate(settings, nodes, links);
    if (done + 1 < Math.round((rounds * report) / REPORTS)) continue;
    report++;
    const x = xs.map((_, i) => nodes[i * PER_NODE]);
    const y = ys.map((_, i) => nodes[i * PER_NODE + 1]);
    self.postMessage({ id, x, y, done: done + 1 === rounds });
  }
};
