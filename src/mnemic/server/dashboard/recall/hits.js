// A ranking: hits with the share of every signal as bars, how they have moved, and what is marked as right.
import { useLayoutEffect, useRef, useState } from "../vendor/preact.js";
import { Badge, Button, Icon, Time, html } from "../ui.js";
import { SIGNALS } from "./settings.js";

const FOLDED = { characters: 220, lines: 3 };
const SMALLEST = 0.005;

/** What identifies a hit. */
export const refOf = ({ kind, scope, id }) => JSON.stringify([kind, scope, id]);

const token = (signal) => SIGNALS[signal.split(" ")[0]] ?? "c9";
const signed = (value) => `${value < 0 ? "−" : "+"}${Math.abs(value).toFixed(2)}`;

/** Where a hit was before, and by how many places it has moved. */
const Move = ({ from, to }) =>
  from === undefined ? null
    : from === null ? html`<${Badge} tone="accent">new<//>`
      : from === to ? null
        : html`<span class=${`move ${from > to ? "up" : "down"}`}><${Icon} name=${from > to ? "up" : "down"} />${Math.abs(from - to)}<span class="hidden"> places ${from > to ? "up" : "down"}</span></span>`;

/** Elements whose place in the list has changed move there, instead of jumping. */
function useMoving(list, order) {
  const places = useRef(new Map());
  useLayoutEffect(() => {
    const before = places.current;
    const still = window.matchMedia("(prefers-reduced-motion: reduce)").matches;
    places.current = new Map([...list.current.children].map((node) => [node.dataset.ref, node.offsetTop]));
    for (const node of still ? [] : list.current.children) {
      const from = before.get(node.dataset.ref);
      const by = from === undefined ? 0 : from - node.offsetTop;
      if (by) node.animate([{ transform: `translateY(${by}px)` }, { transform: "none" }], { duration: 220, easing: "ease-out" });
    }
  }, [order]);
}

function Hit({ hit, place, from, widest, right, onMark, onOpen }) {
  const [open, setOpen] = useState(false);
  const parts = Object.entries(hit.why).filter(([, value]) => Math.abs(value) >= SMALLEST);
  const long = hit.text.length > FOLDED.characters || hit.text.split("\n").length > FOLDED.lines;
  return html`<li class="hit ${right ? "right" : ""}" data-ref=${refOf(hit)}>
    <div class="hit-place"><span class="num">${place}</span><${Move} from=${from} to=${place} /></div>
    <div class="hit-body">
      <div class="hit-head"><p class="hit-text ${long && !open ? "clamped" : ""}" dir="auto">${hit.text}</p><strong class="num" title="score">${hit.score.toFixed(2)}</strong></div>
      ${long && html`<button type="button" class="link small muted" onClick=${() => setOpen(!open)}>${open ? "Show less" : "Show all"}</button>`}
      <div class="bar" aria-hidden="true">${parts.filter(([, value]) => value > 0).map(([name, value]) => html`<i key=${name} class=${token(name)} style=${{ width: `${(value / widest) * 100}%` }} title="${name} ${signed(value)}"></i>`)}</div>
      <ul class="why" aria-label="Signals">${parts.map(([name, value]) => html`<li key=${name}><i class="dot ${token(name)}"></i>${name} <span class="num">${signed(value)}</span></li>`)}</ul>
      <div class="hit-foot small muted"><${Badge}>${hit.kind}<//><button type="button" class="link ellipsis" title="Show the record" onClick=${() => onOpen(hit)}>${hit.scope || "/"}</button><${Time} at=${hit.created} />
        <${Button} kind=${right ? "marked" : undefined} icon="check" aria-pressed=${right ? "true" : "false"} onClick=${() => onMark(hit)}>Right<//></div>
    </div>
  </li>`;
}

/** The hits of a ranking; `before` is the ranking that moves are told against, or null. */
export function Hits({ hits, before, marked, onMark, onOpen, label }) {
  const list = useRef(null);
  useMoving(list, hits);
  const places = before && new Map(before.map((hit, i) => [refOf(hit), i + 1]));
  const widest = Math.max(1, ...hits.map((hit) => Object.values(hit.why).reduce((sum, value) => sum + Math.max(value, 0), 0)));
  return html`<ol class="hits" ref=${list} aria-label=${label}>
    ${hits.map((hit, i) => html`<${Hit} key=${refOf(hit)} hit=${hit} place=${i + 1} widest=${widest} right=${marked.has(refOf(hit))} onMark=${onMark} onOpen=${onOpen}
      from=${places ? (places.get(refOf(hit)) ?? null) : undefined} />`)}
  </ol>`;
}
