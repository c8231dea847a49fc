// The facts of a scope as a graph: names are nodes, facts are arrows, and only what was true at a time is drawn.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { Graph, Sigma } from "../vendor/graph.js";
import { color } from "../chart.js";
import { Button, html, plural } from "../ui.js";

const TURN = 2.399963; // the golden angle: a spiral without overlaps to begin with
const MANY = 300;
const LABELED = 40; // A graph with at most so many names shows all of them.
const [TEXT, EDGE_TEXT] = [12, 11]; // sizes of the texts of names and arrows
const PADDING = 24;

/** Whether a fact was true at a time in milliseconds. */
export const trueAt = (fact, at) => fact.begins <= at && at < fact.ends;

/** Names with their facts, the best connected first; the same facts give the same order. */
export function namesOf(facts) {
  const found = new Map();
  for (const fact of facts)
    for (const name of new Set([fact.subject, fact.object])) {
      if (!found.has(name)) found.set(name, []);
      found.get(name).push(fact);
    }
  return [...found].sort(([a, x], [b, y]) => y.length - x.length || (a < b ? -1 : 1));
}

function build(facts) {
  const graph = new Graph({ multi: false, type: "directed", allowSelfLoops: true });
  const subjects = new Set(facts.map((fact) => fact.subject));
  namesOf(facts).forEach(([name, own], i) =>
    graph.addNode(name, {
      label: name.length > 40 ? `${name.slice(0, 39)}…` : name,
      x: Math.sqrt(i + 0.5) * Math.cos(i * TURN) * 40,
      y: Math.sqrt(i + 0.5) * Math.sin(i * TURN) * 40,
      size: Math.min(18, (facts.length > MANY ? 1.2 : 3.5) + 1.4 * Math.sqrt(own.length)),
      token: subjects.has(name) ? "c1" : "c9",
      facts: own,
    }),
  );
  for (const fact of facts) {
    if (!graph.hasEdge(fact.subject, fact.object)) graph.addEdge(fact.subject, fact.object, { facts: [], size: facts.length > MANY ? 1 : 2.5 });
    graph.getEdgeAttribute(fact.subject, fact.object, "facts").push(fact);
  }
  // A name that has few facts begins beside the best connected one that it has a fact with.
  graph.forEachNode((name, { x, y }) => {
    const near = graph.neighbors(name).reduce((best, one) => (graph.degree(one) > graph.degree(best) ? one : best), name);
    if (near === name) return;
    const center = graph.getNodeAttributes(near);
    graph.mergeNodeAttributes(name, { x: center.x + (x - center.x) * 0.2, y: center.y + (y - center.y) * 0.2 });
  });
  return graph;
}

/** What an arrow says: the predicates of its facts. */
const said = (facts) => [...new Set(facts.map((fact) => fact.predicate))].join(", ").slice(0, 60);

/**
 * Arrange a graph in a worker, for a stage of a width and height; `onStep` gets the box of the drawing after each part of the
 * work, and whether it is done. Returns a function that stops it.
 */
function arrange(graph, stage, font, onStep) {
  const names = graph.nodes();
  const small = graph.order <= LABELED;
  const pen = document.createElement("canvas").getContext("2d");
  const width = (text, size) => ((pen.font = `500 ${size}px ${font}`), pen.measureText(text).width);
  const places = new Map(names.map((name, i) => [name, i]));
  const [edges, lengths] = [[], []];
  graph.forEachEdge((_, { facts }, source, target, from, to) => {
    if (source === target) return;
    edges.push(places.get(source), places.get(target));
    const names = Math.min(160, (width(from.label, TEXT) + width(to.label, TEXT)) / 2 + 16);
    lengths.push(small ? Math.max(names, Math.min(180, width(said(facts), EDGE_TEXT)) + from.size + to.size + 28) : 60);
  });
  const worker = new Worker(new URL("./layout_worker.js", import.meta.url), { type: "module" });
  worker.onmessage = ({ data }) => {
    graph.updateEachNodeAttributes((name, given) => ({ ...given, x: data.x[places.get(name)], y: data.y[places.get(name)] }), { attributes: ["x", "y"] });
    onStep(data.box, data.done);
    if (data.done) worker.terminate();
  };
  const all = (attribute) => Float32Array.from(names, (name) => graph.getNodeAttribute(name, attribute));
  const widths = names.map((name) => (small ? width(graph.getNodeAttribute(name, "label"), TEXT) + 6 : 0));
  worker.postMessage({ xs: all("x"), ys: all("y"), sizes: all("size"), edges, lengths, widths, small, stage, rounds: names.length > MANY ? 60 : 300 });
  return () => worker.terminate();
}

/** Draw a name below its node: with a halo, so that it can be read over lines, or in a box if it is pointed at. */
function drawLabel(context, { label, x, y, size: radius }, { labelSize: size, labelFont }, colors, boxed) {
  if (!label) return;
  context.font = `${boxed ? 600 : 500} ${size}px ${labelFont}`;
  const left = x - context.measureText(label).width / 2;
  const middle = y + radius + 4 + size / 2;
  if (boxed) {
    context.fillStyle = colors.surface;
    context.strokeStyle = colors["line-strong"];
    context.lineWidth = 1;
    context.beginPath();
    context.roundRect(left - 4, middle - size / 2 - 3, context.measureText(label).width + 8, size + 7, 4);
    context.fill();
    context.stroke();
  } else {
    context.strokeStyle = colors.surface;
    context.lineWidth = 3;
    context.lineJoin = "round";
    context.strokeText(label, left, middle + size / 3);
  }
  context.fillStyle = colors.text;
  context.fillText(label, left, middle + size / 3);
}

/** Draw what an arrow says, along it; of two arrows between the same names, each at its own side. */
function drawEdgeLabel(context, { label }, source, target, { edgeLabelSize: size, edgeLabelFont }, colors, both) {
  if (!label) return;
  context.font = `${size}px ${edgeLabelFont}`;
  const [dx, dy] = [target.x - source.x, target.y - source.y];
  const length = Math.hypot(dx, dy);
  const free = length - source.size - target.size;
  let text = label;
  if (context.measureText(text).width > free * 1.3)
    while (text && context.measureText(`${text}…`).width > free) text = text.slice(0, -1);
  if (text.length < Math.min(3, label.length)) return;
  if (text !== label) text += "…";
  const turned = dx < 0;
  context.save();
  context.translate((source.x + target.x) / 2 + (dx / length) * (source.size - target.size) * 0.5, (source.y + target.y) / 2 + (dy / length) * (source.size - target.size) * 0.5);
  context.rotate(Math.atan2(dy, dx) + (turned ? Math.PI : 0));
  const up = size / 3 - (both ? (turned ? -1 : 1) * (size / 2 + 2) : 0);
  const left = -context.measureText(text).width / 2;
  context.strokeStyle = colors.surface;
  context.lineWidth = 3;
  context.lineJoin = "round";
  context.strokeText(text, left, up);
  context.fillStyle = colors.muted;
  context.fillText(text, left, up);
  context.restore();
}

const TOKENS = ["text", "muted", "surface", "line", "line-strong", "accent", "c1", "c9"];
const tokens = () => Object.fromEntries(TOKENS.map((name) => [name, color(name)]));

/** The drawing. `at` is a time in milliseconds; `selected` a name, or null. */
export function FactGraph({ facts, at, selected, onSelect }) {
  const place = useRef(null);
  const sigma = useRef(null);
  const now = useRef({});
  now.current = { at, selected, onSelect };
  const [ready, setReady] = useState(false);
  const [failure, setFailure] = useState(null);
  const graph = useMemo(() => build(facts), [facts]);

  useEffect(() => {
    let colors = tokens();
    let hovered = null;
    const near = (name) => {
      const center = now.current.selected ?? hovered;
      return !center || !graph.hasNode(center) || name === center || graph.areNeighbors(name, center);
    };
    const small = graph.order <= LABELED;
    const few = (center) => Boolean(center) && graph.hasNode(center) && graph.degree(center) <= 30;
    let drawn;
    try {
      drawn = new Sigma(graph, place.current, {
        allowInvalidContainer: true,
        defaultEdgeType: "arrow",
        labelFont: getComputedStyle(document.body).fontFamily,
        labelSize: TEXT,
        labelDensity: 0.7,
        labelRenderedSizeThreshold: 5,
        edgeLabelFont: getComputedStyle(document.body).fontFamily,
        edgeLabelSize: EDGE_TEXT,
        renderEdgeLabels: true,
        zIndex: true,
        minEdgeThickness: 1,
        minCameraRatio: 0.02,
        maxCameraRatio: 4,
        stagePadding: PADDING,
        defaultDrawNodeLabel: (context, data, settings) => drawLabel(context, data, settings, colors, false),
        defaultDrawNodeHover: (context, data, settings) => drawLabel(context, data, settings, colors, true),
        defaultDrawEdgeLabel: (context, data, source, target, settings) => drawEdgeLabel(context, data, source, target, settings, colors, graph.hasEdge(target.key, source.key)),
        nodeReducer: (name, data) => {
          const visible = data.facts.some((fact) => trueAt(fact, now.current.at)) || name === now.current.selected;
          const close = near(name);
          return {
            ...data,
            hidden: !visible,
            color: close ? (name === now.current.selected ? colors.accent : colors[data.token]) : colors.line,
            label: close ? data.label : null,
            forceLabel: close && (small || few(now.current.selected)),
            highlighted: name === now.current.selected,
            zIndex: close ? 1 : 0,
          };
        },
        edgeReducer: (edge, data) => {
          const shown = data.facts.filter((fact) => trueAt(fact, now.current.at));
          const center = now.current.selected ?? hovered;
          const close = !center || graph.extremities(edge).includes(center);
          return {
            ...data,
            hidden: !shown.length,
            color: close && center ? colors.accent : close ? colors["line-strong"] : colors.line,
            label: close && (small || few(center)) ? said(shown) : null,
            forceLabel: close && (small || few(center)),
            zIndex: close ? 1 : 0,
          };
        },
      });
    } catch (error) {
      setFailure(error);
      return;
    }
    sigma.current = drawn;
    drawn.on("clickNode", ({ node }) => now.current.onSelect(node));
    drawn.on("clickStage", () => now.current.onSelect(null));
    const hover = (name) => {
      hovered = name;
      place.current?.classList.toggle("over-node", Boolean(name));
      drawn.refresh({ skipIndexation: true });
    };
    drawn.on("enterNode", ({ node }) => hover(node));
    drawn.on("leaveNode", () => hover(null));
    const themed = () => {
      colors = tokens();
      drawn.refresh();
    };
    window.addEventListener("mnemic-theme", themed);
    const system = window.matchMedia("(prefers-color-scheme: dark)");
    system.addEventListener("change", themed);
    setReady(false);
    const stage = [place.current.clientWidth, place.current.clientHeight].map((size) => Math.max(100, size - 2 * PADDING));
    const stop = arrange(graph, stage, getComputedStyle(document.body).fontFamily, (box, done) => {
      drawn.setCustomBBox(box);
      drawn.refresh();
      setReady(done);
    });
    return () => {
      stop();
      window.removeEventListener("mnemic-theme", themed);
      system.removeEventListener("change", themed);
      drawn.kill();
      sigma.current = null;
    };
  }, [graph]);

  const move = (state) => sigma.current?.getCamera().animate(state, { duration: window.matchMedia("(prefers-reduced-motion: reduce)").matches ? 0 : 250 });
  useEffect(() => sigma.current?.refresh({ skipIndexation: true }), [at, selected]);
  useEffect(() => {
    const shown = ready && selected && graph.hasNode(selected) && sigma.current?.getNodeDisplayData(selected);
    if (shown && graph.order > 40) move({ x: shown.x, y: shown.y, ratio: Math.min(sigma.current.getCamera().ratio, 0.5) });
  }, [selected, ready]);

  if (failure) return html`<p class="graph-note muted">The graph needs WebGL, which this browser does not offer. The table shows the same facts.</p>`;
  return html`<div class="graph" data-ready=${ready ? "true" : "false"}>
    <div class="graph-stage" ref=${place} role="img" aria-label="Graph of ${plural(graph.order, "name")} and ${plural(facts.length, "fact")}. The table shows the same facts as text."></div>
    <div class="graph-tools">
      <${Button} icon="plus" label="Zoom in" onClick=${() => move({ ratio: sigma.current.getCamera().ratio / 1.6 })} />
      <${Button} icon="minus" label="Zoom out" onClick=${() => move({ ratio: sigma.current.getCamera().ratio * 1.6 })} />
      <${Button} icon="fit" label="Show all" onClick=${() => move({ x: 0.5, y: 0.5, ratio: 1, angle: 0 })} />
    </div>
    ${!ready && html`<span class="graph-note muted small" role="status">Arranging …</span>`}
  </div>`;
}
