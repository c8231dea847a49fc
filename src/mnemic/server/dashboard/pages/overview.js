// Overview: what there is, how it grew, what happens, how well recall answers; and how to begin.
import { useEffect, useMemo, useState } from "../vendor/preact.js";
import { get, post } from "../api.js";
import { Hover, TimeAxis, line, stacked, useWidth } from "../timeline/timechart.js";
import { Button, Card, Count, Empty, ErrorBox, Figure, Loaded, Loading, Page, Select, Text, Time, attempt, day, duration, html, minute, number, percent, plural, toast, useLoad } from "../ui.js";
import { KINDS } from "../timeline/kinds.js";
import { useMore } from "../timeline/more.js";

const HEIGHT = 140;
const DAY = 86_400_000;
const SPANS = [["30", "30 days"], ["90", "90 days"], ["365", "a year"]];
const MOST = 5000; // How many scopes are listed at most.
const SHOWN = 40;
const UNEVEN = 15; // From a day with so many times the usual on, the small days would not show.
const FEW_SCOPES = 30; // Up to here, all scopes are shown at once; of more, the highest.

export default function OverviewPage({ scope, params, go, who }) {
  const stats = useLoad((signal) => get("/stats", { scope }, { signal }), [scope]);
  const whole = useLoad((signal) => get("/timeline", { scope, buckets: 120 }, { signal }), [scope]);
  const [drawn, setDrawn] = useState(false); // Both charts show something before the rest is counted.
  useMore(drawn ? whole : {});
  const empty = stats.value && itemsOf(stats.value) === 0;
  return html`<${Page} title="Overview" about=${html`<${Crumbs} scope=${scope} root=${who.scope} go=${go} />`}>
    ${stats.error
      ? html`<${ErrorBox} error=${stats.error} onRetry=${stats.reload} />`
      : !stats.value
        ? html`<${Loading} lines=${8} />`
        : empty
          ? html`<${Begin} scope=${scope} go=${go} who=${who} onDone=${() => (stats.reload(), whole.reload())} />`
          : html`<div class="stack">
              <${Figures} stats=${stats.value} />
              <div class="columns">
                <${Activity} scope=${scope} params=${params} go=${go} whole=${whole} onDrawn=${() => setDrawn(true)} />
                <${Growth} whole=${whole} />
              </div>
              ${who.rights.includes("admin") && !who.scope && html`<${Recalls} />`}
              <${Scopes} scope=${scope} params=${params} go=${go} />
            </div>`}
  <//>`;
}

const itemsOf = (stats) => stats.messages + stats.archived + stats.summaries + stats.memories + stats.notes + stats.facts + stats.state;

/** The path of the scope, each part of it a link. */
function Crumbs({ scope, root, go }) {
  const parts = scope ? scope.split("/") : [];
  const from = root ? root.split("/").length : 0;
  return html`<span class="crumbs">${!root && html`<button type="button" class="link" disabled=${!scope} onClick=${() => go(null, { scope: null })}>All scopes</button>`}
    ${parts.map((part, i) => html`<span key=${i}>${(i > 0 || !root) && html`<span aria-hidden="true"> / </span>`}${i + 1 < from ? part : html`<button type="button" class="link" disabled=${i + 1 === parts.length} onClick=${() => go(null, { scope: parts.slice(0, i + 1).join("/") })}>${part}</button>`}</span>`)}</span>`;
}

const Figures = ({ stats }) => html`<${Card} aria-label="Sizes"><div class="figures">
  <${Figure} label="Sessions" value=${html`<${Count} of=${stats.sessions} />`} />
  <${Figure} label="Messages" value=${html`<${Count} of=${stats.messages} />`} hint=${stats.archived > 0 ? html`and <${Count} of=${stats.archived} /> archived` : undefined} />
  <${Figure} label="Tokens" value=${html`<${Count} of=${stats.tokens} />`} />
  <${Figure} label="Memories" value=${html`<${Count} of=${stats.memories} />`} />
  <${Figure} label="Facts" value=${html`<${Count} of=${stats.facts} />`} />
  <${Figure} label="Notes" value=${html`<${Count} of=${stats.notes} />`} />
  ${stats.state > 0 && html`<${Figure} label="State" value=${html`<${Count} of=${stats.state} />`} />`}
  <${Figure} label="Last change" value=${html`<${Time} at=${stats.last_activity} />`} />
</div><//>`;

/** Records by day, stacked by kind. */
function Activity({ scope, params, go, whole, onDrawn }) {
  const span = SPANS.some(([name]) => name === params.days) ? params.days : "90";
  const setSpan = (name) => go(null, { ...params, days: name === "90" ? null : name }, { replace: true });
  const [place, width] = useWidth();
  const now = whole.value?.now;
  const counting = whole.value?.missing === "more";
  const days = Number(span);
  const times = useMemo(() => {
    const end = new Date(now ?? 0);
    end.setHours(24, 0, 0, 0);
    const start = new Date(end);
    start.setDate(start.getDate() - days);
    return [start, end].map((time) => time.toISOString());
  }, [now?.slice(0, 10), days]);
  const found = useLoad(async (signal) => (now ? get("/timeline", { scope, since: times[0], until: times[1], buckets: days }, { signal }) : undefined), [scope, !now, times.join(), counting]);
  useEffect(() => void (found.value && onDrawn()), [found.value]);
  const [since, until] = times.map(Date.parse);
  const sums = found.value ? Array.from({ length: days }, (_, i) => Object.values(found.value.counts).reduce((sum, counts) => sum + (counts[i] ?? 0), 0)) : [];
  const total = sums.reduce((a, b) => a + b, 0);
  const most = Math.max(0, ...sums);
  const some = sums.filter(Boolean).sort((a, b) => a - b);
  const uneven = most > UNEVEN * (some[Math.floor(some.length / 2)] ?? 0);
  return html`<${Card} title="Activity" actions=${html`<${Select} label="Time" quiet value=${span} onValue=${setSpan} options=${SPANS} />`}>
    <div ref=${place} class="overview-chart">
      ${found.error || whole.error
        ? html`<${ErrorBox} error=${found.error ?? whole.error} onRetry=${found.reload} />`
        : !found.value || !width
          ? html`<${Loading} />`
          : html`<svg width=${width} height=${HEIGHT + 18} viewBox="0 0 ${width} ${HEIGHT + 18}" role="img" aria-label="${plural(total, "record")} in the last ${days} days, by day">
                <${TimeAxis} since=${since} until=${until} width=${width} height=${HEIGHT} />
                ${stacked(KINDS.map((one) => found.value.counts[one.kind]), { width, height: HEIGHT - 16, bottom: HEIGHT, scale: uneven ? Math.sqrt : undefined }).map((path, i) => html`<path key=${i} class="bars ${KINDS[i].token}" d=${path} />`)}
                <text class="mark" x="2" y="11">${most > 0 && `at most ${number(most)} a day`}</text>
                <${Hover} count=${days} width=${width} height=${HEIGHT} text=${(i) => `${day(since + (i + 0.5) * DAY)}: ${plural(sums[i], "record")}${told(found.value.counts, i)}`} />
              </svg>
              <p class="muted small">${plural(total, "record")} since ${day(since)}${total === 0 && whole.value.last ? `; the newest is of ${day(whole.value.last)}` : ""}.${uneven ? " Heights grow with the square root, so that the small days show." : ""}</p>
              <${Legend} counts=${found.value.counts} />`}
    </div>
  <//>`;
}

const told = (counts, i) => KINDS.filter((one) => counts[one.kind]?.[i]).map((one) => `\n${one.name} ${number(counts[one.kind][i])}`).join("");

const Legend = ({ counts }) => html`<ul class="legend">${KINDS.filter((one) => counts[one.kind]?.some(Boolean)).map((one) => html`<li key=${one.kind}><span class="kind ${one.token}">${one.name}</span></li>`)}</ul>`;

/** All records over time, as a line that only rises. */
function Growth({ whole }) {
  const [place, width] = useWidth();
  const found = whole.value;
  const sums = useMemo(() => {
    if (!found) return [];
    let total = 0;
    return Object.values(found.counts)[0].map((_, i) => (total += Object.values(found.counts).reduce((sum, counts) => sum + counts[i], 0)));
  }, [found]);
  const points = sums.map((sum, i) => [((i + 1) / sums.length) * width, HEIGHT - (sum / (sums.at(-1) || 1)) * (HEIGHT - 12)]);
  return html`<${Card} title="Growth">
    <div ref=${place} class="overview-chart">
      ${whole.error
        ? html`<${ErrorBox} error=${whole.error} onRetry=${whole.reload} />`
        : !found || !width
          ? html`<${Loading} />`
          : html`<svg width=${width} height=${HEIGHT + 18} viewBox="0 0 ${width} ${HEIGHT + 18}" role="img" aria-label="Growth to ${plural(sums.at(-1) ?? 0, "record")}">
                <${TimeAxis} since=${Date.parse(found.since)} until=${Date.parse(found.until)} width=${width} height=${HEIGHT} />
                <path class="area" d=${`${line([[0, HEIGHT], ...points])}V${HEIGHT}Z`} />
                <path class="curve k1" d=${line([[0, HEIGHT], ...points])} />
                <text class="mark" x="2" y="11">${number(sums.at(-1) ?? 0)}</text>
                <${Hover} count=${sums.length} width=${width} height=${HEIGHT} text=${(i) => `${minute(Date.parse(found.since) + ((i + 1) / sums.length) * (Date.parse(found.until) - Date.parse(found.since)))}: ${plural(sums[i], "record")}`} />
              </svg>
              <p class="muted small">${plural(sums.at(-1) ?? 0, "record")} since ${day(found.since)}${found.missing === "more" ? `; counting, ${number(found.read)} of ${number(found.total)} so far …` : found.missing === "old" ? `: the newest of ${number(found.total)}` : ""}.</p>`}
    </div>
  <//>`;
}

/** How well and how fast recall has answered since the server started. */
function Recalls() {
  const metrics = useLoad((signal) => get("/metrics", {}, { signal }), []);
  const [place, width] = useWidth();
  return html`<${Card} title="Recall">
    <div ref=${place} class="overview-chart"><${Loaded} of=${metrics}>${(found) =>
      found.recalls === 0
        ? html`<p class="muted">No recalls since the server started. How often recall finds an answer, and how fast, is shown here.</p>`
        : html`<div class="recalls"><div class="figures">
            <${Figure} label="Answered" value=${percent(found.hit_ratio)} hint=${`of ${plural(found.recalls, "recall")}`} />
            <${Figure} label="Median" value=${duration(found.p50_ms)} hint=${`95% within ${duration(found.p95_ms)}`} />
            <${Figure} label="Best score" value=${found.mean_score.toFixed(2)} hint=${drift(found.drift)} />
            <${Figure} label="Reported as used" value=${number(found.used)} />
          </div><${Hours} periods=${found.periods} width=${width > 700 ? width / 2 : width} /></div>`}<//></div>
  <//>`;
}

const drift = (value) => (Math.abs(value) < 0.02 ? "steady" : `${value > 0 ? "rising" : "falling"} by ${Math.abs(value).toFixed(2)}`);

/** Recalls by hour: those with an answer, and the others. */
function Hours({ periods, width }) {
  if (!width) return null;
  const start = Date.parse(periods[0].start), end = Date.parse(periods.at(-1).start) + 3_600_000;
  const hours = Math.max(24, Math.round((end - start) / 3_600_000));
  const since = end - hours * 3_600_000;
  const [answered, missed] = [new Array(hours).fill(0), new Array(hours).fill(0)];
  for (const one of periods) {
    const at = Math.round((Date.parse(one.start) - since) / 3_600_000);
    answered[at] = one.answered;
    missed[at] = one.recalls - one.answered;
  }
  const [good, bad] = stacked([answered, missed], { width, height: 44, bottom: 48 });
  return html`<svg width=${width} height="64" viewBox="0 0 ${width} 64" role="img" aria-label="Recalls by hour, the answered ones below">
    <${TimeAxis} since=${since} until=${end} width=${width} height=${48} />
    <path class="bars k1" d=${good} /><path class="bars k9" d=${bad} /></svg>`;
}

// --- scopes

async function allScopes(scope, signal) {
  const items = [];
  let cursor = null;
  do {
    const page = await get("/scopes", { scope, limit: 1000, cursor }, { signal });
    items.push(...page.items);
    cursor = page.cursor;
  } while (cursor && items.length < MOST);
  return { items, more: cursor !== null };
}

const COLUMNS = [["sessions", "Sessions"], ["messages", "Messages"], ["tokens", "Tokens"], ["memories", "Memories"], ["facts", "Facts"], ["notes", "Notes"]];
const FEW = ["messages", "memories"]; // Columns that a narrow window shows.

/** A tree of scopes: each with the sums of what is in it and below. */
function treeOf(items, top) {
  const nodes = new Map();
  const node = (path) => {
    if (!nodes.has(path)) nodes.set(path, { path, children: [], last_activity: null, sessions: 0, messages: 0, tokens: 0, memories: 0, facts: 0, notes: 0 });
    return nodes.get(path);
  };
  const root = node(top);
  for (const item of items) {
    const parts = item.scope.split("/");
    const depth = top ? top.split("/").length : 0;
    let parent = root;
    for (let n = depth + 1; n <= parts.length && item.scope !== top; n++) {
      const path = parts.slice(0, n).join("/");
      const fresh = !nodes.has(path);
      const one = node(path);
      if (fresh) parent.children.push(one);
      parent = one;
      add(one, item);
    }
    add(root, item);
  }
  return root;
}

function add(node, item) {
  for (const [name] of COLUMNS) node[name] += item[name];
  if (item.last_activity > (node.last_activity ?? "")) node.last_activity = item.last_activity;
}

const parents = (node) => node.children.filter((one) => one.children.length).flatMap((one) => [one.path, ...parents(one)]);

const sorter = (by) => (by === "scope" ? (a, b) => (a.path < b.path ? -1 : 1) : by === "last_activity" ? (a, b) => ((a.last_activity ?? "") < (b.last_activity ?? "") ? 1 : -1) : (a, b) => b[by] - a[by]);

function Scopes({ scope, params, go }) {
  const found = useLoad((signal) => allScopes(scope, signal), [scope]);
  const [folded, setFolded] = useState(null); // null: not touched yet
  const [most, setMost] = useState(SHOWN);
  const by = ["scope", "last_activity", ...COLUMNS.map(([name]) => name)].includes(params.by) ? params.by : "scope";
  const setBy = (name) => go(null, { ...params, by: name === "scope" ? null : name }, { replace: true });
  const search = params.search ?? "";
  const tree = useMemo(() => found.value && treeOf(found.value.items, scope), [found.value, scope]);
  const closed = useMemo(() => folded ?? new Set(tree && found.value.items.length > FEW_SCOPES ? parents(tree) : []), [folded, tree]);
  const rows = useMemo(() => {
    if (!tree) return [];
    const words = search.toLowerCase();
    const listed = [];
    const walk = (node, depth) => {
      for (const child of [...node.children].sort(sorter(by))) {
        if (!words || child.path.toLowerCase().includes(words)) listed.push([child, words ? 0 : depth]);
        if (words || !closed.has(child.path)) walk(child, depth + 1);
      }
    };
    walk(tree, 0);
    return listed;
  }, [tree, search, closed, by]);
  const toggle = (path) => setFolded(new Set(closed.has(path) ? [...closed].filter((one) => one !== path) : [...closed, path]));
  const Head = ({ name, title, class: style }) => html`<th scope="col" class=${style} aria-sort=${by === name ? (name === "scope" ? "ascending" : "descending") : undefined}><button type="button" class="sorter" onClick=${() => setBy(name)}>${title}${by === name ? (name === "scope" ? " ↑" : " ↓") : ""}</button></th>`;
  return html`<${Card} title="Scopes" flush actions=${html`<${Text} label="Search scopes" quiet type="search" placeholder="Search scopes" value=${search} onValue=${(value) => go(null, { ...params, search: value }, { replace: true })} />`}>
    <${Loaded} of=${found}>${(value) =>
      tree.children.length === 0
        ? html`<${Empty} title="No scopes below this one">Everything here is in ${scope || "/"} itself.<//>`
        : rows.length === 0
          ? html`<${Empty} title="No scope matches">None of ${plural(value.items.length, "scope")} has this in its path.<//>`
          : html`<div class="table-frame" role="region" aria-label="Table of scopes" tabindex="0"><table class="scopes">
              <thead><tr><${Head} name="scope" title="Scope" />${COLUMNS.map(([name, title]) => html`<${Head} key=${name} name=${name} title=${title} class=${`end ${FEW.includes(name) ? "" : "roomy"}`} />`)}<${Head} name="last_activity" title="Last change" class="end" /></tr></thead>
              <tbody>${rows.slice(0, most).map(([one, depth]) => html`<tr key=${one.path}>
                <td><span class="branch d${Math.min(depth, 6)}">
                  ${one.children.length > 0 && !search ? html`<button type="button" class="twig" aria-expanded=${closed.has(one.path) ? "false" : "true"} aria-label="Scopes in ${one.path}" onClick=${() => toggle(one.path)}>${closed.has(one.path) ? "▸" : "▾"}</button>` : html`<span class="twig"></span>`}
                  <button type="button" class="link" onClick=${() => go(null, { scope: one.path })}>${search ? one.path : one.path.split("/").at(-1)}</button></span></td>
                ${COLUMNS.map(([name]) => html`<td key=${name} class="end num ${FEW.includes(name) ? "" : "roomy"}">${one[name] ? number(one[name]) : html`<span class="muted">–</span>`}</td>`)}
                <td class="end"><${Time} at=${one.last_activity} /></td>
              </tr>`)}</tbody></table></div>
            ${rows.length > most && html`<div class="more"><${Button} onClick=${() => setMost(most + 5 * SHOWN)}>Show more of ${number(rows.length)}<//></div>`}
            ${value.more && html`<p class="muted small more">Only the first ${number(value.items.length)} scopes are listed; choose one to see what is below it.</p>`}`}<//>
  <//>`;
}

// --- the first minutes

/** An empty store: something to type, and two lines to copy. */
function Begin({ scope, go, who, onDone }) {
  const [text, setText] = useState("");
  const into = scope || "demo";
  const lines = `import mnemic\nmnemic.open("${location.origin}").scope(${into.split("/").map((part) => JSON.stringify(part)).join(", ")}).remember("Alice likes trains")`;
  const send = async (event) => {
    event.preventDefault();
    if (await attempt(() => post("/memories", { text: text.trim() }, { query: { scope: into } }), { done: "Remembered" })) {
      setText("");
      go("recall", { scope: into, query: "" });
    }
  };
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(lines);
      toast("Copied");
    } catch {
      toast("The browser does not allow it: mark the lines and copy them.", { tone: "danger" });
    }
  };
  return html`<${Card}><div class="begin">
    <h2>Nothing is stored ${scope ? html`in <code>${scope}</code>` : "here"} yet</h2>
    ${who.rights.includes("write") && html`<form class="stack" onSubmit=${send}>
      <p>Remember something, and ask for it:</p>
      <div class="begin-row"><${Text} label="Something to remember" quiet placeholder="Alice prefers trains to planes" value=${text} onValue=${setText} maxlength="10000" />
        <button class="button primary" disabled=${!text.trim()}>Remember</button></div>
      <p class="muted small">It is stored in the scope <code>${into}</code>.</p>
    </form>`}
    <div class="stack"><p>Or from Python${who.csrf ? ", with your key in the variable MNEMIC_API_KEY" : ""}:</p>
      <div class="copyable"><pre>${lines}</pre><${Button} icon="copy" label="Copy" onClick=${copy} /></div>
      <div class="row"><${Button} onClick=${onDone}>Look again<//></div></div>
  </div><//>`;
}
