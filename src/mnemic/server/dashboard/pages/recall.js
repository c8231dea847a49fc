// The Recall lab: a question, its hits and why, settings to move, two of them side by side, and marks of what is right.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { post } from "../api.js";
import { Hits, refOf } from "../recall/hits.js";
import { asRecallSet, download, measured, useMarks, useRanks } from "../recall/marks.js";
import { RecordDialog } from "../timeline/record_dialog.js";
import { DEFAULTS, SettingsPanel, asPython, body, pack, unpack } from "../recall/settings.js";
import { Button, Card, Dialog, Empty, ErrorBox, Loaded, Page, Table, Tabs, Text, duration, html, percent, plural, toast, useLoad, useNarrow, useRested } from "../ui.js";

/** The hits of a question with some settings, and how long it took; nothing without a question. */
function useRecall(scope, query, settings) {
  const key = settings && query.trim() ? JSON.stringify(body(query, settings)) : null;
  return useLoad(
    async (signal) => {
      if (!key) return undefined;
      const started = performance.now();
      const { hits } = await post("/recall", JSON.parse(key), { query: { scope }, signal });
      return { hits, ms: performance.now() - started };
    },
    [scope, key],
  );
}

const BURST = 1500; // A question that is changed within so many milliseconds is the same one in the history.
const key = ({ q, a, b }) => JSON.stringify([q ?? "", a ?? "", b ?? ""]);

/**
 * Keep the question and settings in the address, and follow it. A new question is a new entry of the history, once the one
 * before has rested, or after a call of the returned function.
 */
function useHistory({ scope, params, go, asked, onAddress }) {
  const last = useRef({ scope, written: key(params), at: -Infinity });
  useEffect(() => {
    const now = key(params);
    const elsewhere = last.current.scope !== scope;
    last.current.scope = scope;
    // Another scope is asked the same question, unless the address has one.
    if (now !== last.current.written && !(elsewhere && params.q === undefined)) {
      last.current.written = now;
      onAddress(params);
    } else if (key(asked) !== now) {
      const time = performance.now();
      const fresh = !elsewhere && asked.q !== (params.q ?? "") && time - last.current.at > BURST;
      Object.assign(last.current, { written: key(asked), at: time });
      go(null, asked, { replace: !fresh });
    }
  }, [scope, key(params), key(asked)]);
  return () => (last.current.at = -Infinity);
}

const rank = (found) => (found === undefined ? "…" : found === 0 ? "not found" : `#${found}`);

/** What the marks say of settings: how often a right hit is among the first k, and how early the first one is. */
function Figures({ name, ranks, k }) {
  const found = ranks.done && !ranks.error ? measured(ranks.ranks, k) : null;
  return html`<span class="figures-of-marks" title="Over all marked questions">right in first ${k}: <strong data-figure="hit-rate-${name}">${found ? percent(found.hitRate, 1) : "…"}</strong> · MRR <strong data-figure="mrr-${name}">${found ? percent(found.mrr, 1) : "…"}</strong></span>`;
}

function Ranking({ name, alone, found, before, scope, figures, ...rest }) {
  const { value } = found;
  return html`<section class="ranking" aria-label=${alone ? "Hits" : `Hits with settings ${name}`}>
    <div class="ranking-head">${!alone && html`<h2>${name}</h2>`}${value && html`<span>${plural(value.hits.length, "hit")} in ${duration(value.ms)}</span>`}${figures}</div>
    <${Loaded} of=${found} lines=${8} slow="The first question in a scope loads its index. With many records that takes some seconds, once.">${({ hits }) =>
      hits.length
        ? html`<${Hits} hits=${hits} before=${before} label=${`Ranking ${name}`} ...${rest} />`
        : html`<${Card}><${Empty} title="Nothing answers this">Nothing in ${scope || "this store"} matches by a word or by its meaning and passes the filters.<//><//>`}<//>
  </section>`;
}

function Marks({ scope, marks, sides, onAsk, onRemove }) {
  const questions = Object.entries(marks);
  const columns = [
    { name: "question", title: "Question", wide: true, value: ([question]) => question },
    { name: "right", title: "Right hits", end: true, value: ([, evidence]) => evidence.length },
    ...sides.map(([name, side]) => ({ name, title: sides.length > 1 ? `First right in ${name}` : "First right", end: true, value: ([question]) => rank(side.ranks[question]) })),
    { name: "remove", title: html`<span class="hidden">Remove</span>`, end: true, value: ([question]) => html`<${Button} kind="quiet" icon="trash" label="Remove the marks of this question" onClick=${(e) => (e.stopPropagation(), onRemove(question))} />` },
  ];
  const actions = html`<${Button} icon="download" disabled=${!questions.length} onClick=${() => download("marks.jsonl", asRecallSet(scope, marks))}>Download<//>`;
  return html`<${Card} title="Marked questions" flush actions=${actions}>
    ${sides.map(([name, side]) => side.error && html`<${ErrorBox} key=${name} error=${side.error} />`)}
    <${Table} label="Questions" columns=${columns} rows=${questions} rowKey=${([question]) => question} onRow=${([question]) => onAsk(question)}
      empty=${html`<${Empty} title="No question is marked yet" icon="check">Ask something, and mark the hits that are right. Then every change of the settings is measured on all marked questions, here and with “mnemic eval”.<//>`} />
  <//>`;
}

export default function RecallPage({ scope, params, go, who }) {
  const [query, setQuery] = useState(params.q ?? "");
  const [a, setA] = useState(() => unpack(params.a));
  const [b, setB] = useState(() => (params.b === undefined ? null : unpack(params.b)));
  const [side, setSide] = useState("A");
  const [open, setOpen] = useState(null); // "settings" on a phone, "code"
  const [record, setRecord] = useState(null);
  const narrow = useNarrow();
  const { marks, toggle, replace } = useMarks(scope);
  const [restedQuery, restedA, restedB] = useRested(useMemo(() => [query, a, b], [query, a, b]), 120);
  const changed = pack(restedA) !== "";
  const foundA = useRecall(scope, restedQuery, restedA);
  const foundB = useRecall(scope, restedQuery, restedB);
  const plain = useRecall(scope, restedQuery, changed && !restedB ? { ...DEFAULTS, k: restedA.k } : null);
  const finish = useHistory({
    scope, params, go,
    asked: { q: restedQuery, a: pack(restedA), b: restedB ? pack(restedB) || "{}" : "" },
    onAddress: ({ q, a, b }) => (setQuery(q ?? ""), setA(unpack(a)), setB(b === undefined ? null : unpack(b))),
  });
  const ranksA = useRanks(scope, marks, restedA);
  const ranksB = useRanks(scope, marks, restedB);
  const figures = (name, ranks, used) => used && Object.keys(marks).length > 0 && html`<${Figures} name=${name} ranks=${ranks} k=${used.k} />`;
  const marked = useMemo(() => new Set((marks[restedQuery] ?? []).map(refOf)), [marks, restedQuery]);
  const acting = { marked, onMark: (hit) => toggle(restedQuery, hit), onOpen: setRecord };
  const [settings, setSettings] = b && side === "B" ? [b, setB] : [a, setA];
  const remove = (question) => {
    const before = marks;
    const { [question]: _, ...others } = marks;
    replace(others);
    toast("The marks of the question are removed", { undo: async () => replace(before) });
  };
  const compare = () => (b ? (setB(null), setSide("A")) : (setB(a), setSide("B")));
  const panel = html`
    ${b && html`<${Tabs} label="Settings of" value=${side} onValue=${setSide} options=${[["A", "A"], ["B", "B"]]} />`}
    <${SettingsPanel} settings=${settings} onSettings=${setSettings} heading=${html`<h2>${b ? `Settings ${side}` : narrow ? "Ranking" : "Settings"}</h2>`} />`;
  const asked = restedQuery.trim() !== "";
  return html`<${Page} title="Recall lab" about="What the agent would be given for a question, and why."
    actions=${html`<${Button} aria-pressed=${b ? "true" : "false"} onClick=${compare}>${b ? "Stop comparing" : "Compare A and B"}<//>
      <${Button} disabled=${!asked} onClick=${() => setOpen("code")}>Use in code<//>
      ${narrow && html`<${Button} icon="filter" onClick=${() => setOpen("settings")}>Settings<//>`}`}>
    <div class="lab ${b ? "comparing" : ""}">
      <div class="stack lab-main">
        <form class="lab-ask" role="search" onSubmit=${(e) => (e.preventDefault(), finish())}>
          <${Text} label="Question" quiet type="search" placeholder="Ask in plain language: what is her sister allergic to?" value=${query} onValue=${setQuery} />
        </form>
        ${asked
          ? html`<div class="rankings">
              <${Ranking} name="A" alone=${!b} found=${foundA} before=${changed && !b ? plain.value?.hits : null} scope=${scope} ...${acting}
                figures=${figures("A", ranksA, restedA)} />
              ${b && html`<${Ranking} name="B" found=${foundB} before=${foundA.value?.hits} scope=${scope} ...${acting} figures=${figures("B", ranksB, restedB)} />`}
            </div>`
          : html`<${Card}><${Empty} title="Ask a question" icon="recall">You see the hits that recall returns, and what each signal adds to their scores. Nothing you do here counts as a use of a memory.<//><//>`}
        <${Marks} scope=${scope} marks=${marks} sides=${[["A", ranksA], ...(restedB ? [["B", ranksB]] : [])]} onAsk=${(question) => (finish(), setQuery(question))} onRemove=${remove} />
      </div>
      ${!narrow && html`<aside class="card lab-panel" aria-label="Settings">${panel}</aside>`}
    </div>
    ${open === "settings" && html`<${Dialog} side title="Settings" onClose=${() => setOpen(null)}>${panel}<//>`}
    ${open === "code" && html`<${Dialog} title="Use in code" onClose=${() => setOpen(null)}><p class="muted">The same recall from Python${b ? `, with settings ${side}` : ""}:</p><pre>${asPython(scope, restedQuery, settings)}</pre><//>`}
    ${record && html`<${RecordDialog} place=${record} go=${go} who=${who} onClose=${() => setRecord(null)} onChanged=${() => [foundA, foundB, plain].forEach((one) => one.reload())} />`}
  <//>`;
}
