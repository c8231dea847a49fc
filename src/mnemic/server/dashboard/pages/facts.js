// Facts: who and what is known, how it is connected, when that was true, and where it came from.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { get, inPath } from "../api.js";
import { Elsewhere } from "../elsewhere.js";
import { add, change, correct, drop, end, find, read } from "../facts/changes.js";
import { FactGraph, namesOf, trueAt } from "../facts/graph.js";
import { Badge, Button, Card, Check, Dialog, Empty, Loaded, Page, Table, Tabs, Text, Time, attempt, day, html, minute, number, percent, plural, toast, useLoad, useRested } from "../ui.js";

const MOST = 2000;
const ROWS = 100;
const BARS = 90;

export default function Facts({ scope, params, go, who }) {
  const loaded = useLoad(async (signal) => {
    const graph = await get("/facts/graph", { scope, max_facts: MOST }, { signal });
    return { ...graph, facts: graph.facts.map(read) };
  }, [scope]);
  const [dialog, setDialog] = useState(null);
  const writes = who.rights.includes("write");
  return html`<${Page} title="Facts" about="What is known, as a graph: move the time to see what was true then."
    actions=${writes && html`<${Button} kind="primary" icon="plus" onClick=${() => setDialog({})}>Add a fact<//>`}>
    <${Loaded} of=${loaded} lines=${8}>
      ${(graph) =>
        graph.total
          ? html`<${View} key=${scope} graph=${graph} scope=${scope} params=${params} go=${go} reload=${loaded.reload} onEdit=${writes ? setDialog : null} />`
          : html`<${Card}><${Elsewhere} scope=${scope} noun="fact" page="facts" icon="facts" title="No facts in this scope">
              An agent adds facts as it learns; a program adds them with <code>scope.facts.add("Alice", "lives_in", "Oslo")</code>.
            <//><//>`}
    <//>
    ${dialog && html`<${FactDialog} scope=${scope} fact=${dialog} onClose=${() => setDialog(null)} after=${loaded.reload} />`}
  <//>`;
}

function View({ graph, scope, params, go, reload, onEdit }) {
  const [more, setMore] = useState([]);
  const parsed = Date.parse(params.at ?? "");
  const [at, setMoment] = useState(Number.isNaN(parsed) ? null : parsed); // null: now, which moves on
  const latest = useRef(params);
  latest.current = params;
  const rested = useRested(at, 250); // a slider that is moved would fill the history of the browser
  useEffect(() => {
    const text = rested === null ? null : new Date(rested).toISOString();
    if ((latest.current.at ?? null) !== text) go(null, { ...latest.current, at: text }, { replace: true });
  }, [rested]);
  const facts = useMemo(() => {
    const known = new Map([...more, ...graph.facts].map((fact) => [fact.id, fact]));
    return [...known.values()].sort((a, b) => a.begins - b.begins);
  }, [graph, more]);
  const now = useMemo(() => Date.now(), [facts]);
  const moment = at ?? now;
  const selected = params.name ?? null;
  const view = params.view === "table" ? "table" : "graph";
  const select = (name) => go(null, { ...params, name }, { replace: true });
  const names = useMemo(() => namesOf(facts), [facts]);
  /** Select what somebody typed: a name as it is, also one that is not loaded yet, or else the first that contains it. */
  const search = async (text) => {
    const word = text.toLowerCase();
    const exact = names.find(([name]) => name.toLowerCase() === word);
    if (exact) return select(exact[0]);
    if (graph.total > facts.length) {
      const found = (await Promise.all([find(scope, { subject: text }), find(scope, { object: text })])).flat();
      if (found.length) return setMore((last) => [...last, ...found]), select(text);
    }
    const similar = names.find(([name]) => name.toLowerCase().includes(word));
    return similar ? select(similar[0]) : toast(`No fact mentions “${text}”.`, { tone: "danger" });
  };
  const valid = facts.filter((fact) => trueAt(fact, moment));
  return html`
    <div class="facts-head">
      <${Tabs} label="View" value=${view} onValue=${(view) => go(null, { ...params, view: view === "graph" ? null : view }, { replace: true })}
        options=${[["graph", "Graph"], ["table", "Table"]]} />
      <${Search} names=${names} onText=${(text) => attempt(() => search(text))} />
    </div>
    <${TimeBar} facts=${facts} at=${at} now=${now} onAt=${setMoment} valid=${valid.length} />
    ${graph.total > facts.length && html`<p class="muted small">Showing the newest ${number(facts.length)} of ${number(graph.total)} facts. Search a name to load all of its facts.</p>`}
    <div class="facts-body ${view === "table" && !selected ? "alone" : ""}">
      <${Card} flush class="card flush stacked">
        ${view === "graph"
          ? html`<${FactGraph} facts=${facts} at=${moment} selected=${selected} onSelect=${select} />`
          : html`<${FactTable} facts=${selected ? valid.filter((fact) => fact.subject === selected || fact.object === selected) : valid} onName=${select} />`}
      <//>
      ${selected
        ? html`<${Details} key=${selected} name=${selected} facts=${facts.filter((fact) => fact.subject === selected || fact.object === selected)} moment=${moment}
            scope=${scope} go=${go} onName=${select} onClose=${() => select(null)} onEdit=${onEdit} reload=${reload} />`
        : view === "graph" && html`<${Card} title="Best connected"><ul class="names">
            ${names.slice(0, 12).map(([name, own]) => html`<li key=${name}><button type="button" class="link ellipsis" onClick=${() => select(name)}>${name}</button>
              <span class="muted small">${plural(own.length, "fact")}</span></li>`)}
          </ul><//>`}
    </div>`;
}

function Search({ names, onText }) {
  const [text, setText] = useState("");
  const send = (event) => {
    event.preventDefault();
    if (text.trim()) onText(text.trim());
    setText("");
  };
  return html`<form class="facts-search" role="search" onSubmit=${send}>
    <${Text} label="Find a name" quiet type="search" placeholder="Find a name" list="fact-names" value=${text} onValue=${setText} />
    <datalist id="fact-names">${text && names.filter(([name]) => name.toLowerCase().includes(text.toLowerCase())).slice(0, 20).map(([name]) => html`<option key=${name} value=${name} />`)}</datalist>
    <button class="button">Find</button>
  </form>`;
}

/** The time: a slider from the first change to now, with the changes drawn above it. */
function TimeBar({ facts, at, now, onAt, valid }) {
  const changes = useMemo(() => [...new Set(facts.flatMap((fact) => [fact.begins, fact.ends]).filter(Number.isFinite))].sort((a, b) => a - b), [facts]);
  const first = changes[0];
  const last = Math.max(now, changes.at(-1));
  const step = Math.max(1, Math.ceil((last - first) / 500));
  const bars = useMemo(() => {
    const counts = new Array(BARS).fill(0);
    for (const fact of facts)
      for (const time of [fact.begins, fact.ends])
        if (Number.isFinite(time)) counts[Math.min(BARS - 1, Math.floor(((time - first) / (last - first || 1)) * BARS))] += 1;
    const most = Math.max(...counts);
    return counts.map((count) => count && Math.max(3, (24 * count) / most));
  }, [facts, first, last]);
  const moment = at ?? now;
  const before = changes.findLast((time) => time < moment);
  const after = changes.find((time) => time > moment && time <= last);
  const jump = (time) => onAt(time >= now && last === now ? null : time);
  const place = BARS * Math.min(1, (moment - first) / (last - first || 1));
  return html`<${Card}><div class="timebar">
    <div class="spread"><span><strong>${at === null ? "Now" : minute(moment)}</strong> <span class="muted">· ${plural(valid, "fact")} true ${at === null ? "now" : "then"}</span></span>
      <span class="row">
        <${Button} kind="quiet" icon="back" label="Change before" disabled=${before === undefined} onClick=${() => jump(before)} />
        <${Button} kind="quiet" icon="chevron" label="Change after" disabled=${after === undefined} onClick=${() => jump(after)} />
        <${Button} disabled=${at === null} onClick=${() => onAt(null)}>Now<//>
      </span></div>
    <svg class="changes" viewBox="0 0 ${BARS} 24" preserveAspectRatio="none" aria-hidden="true">
      ${bars.map((height, i) => height > 0 && html`<rect key=${i} class=${i < place ? "past" : "ahead"} x=${i + 0.15} y=${24 - height} width="0.7" height=${height} />`)}
    </svg>
    <input type="range" aria-label="Time" aria-valuetext=${at === null ? "Now" : minute(moment)} min=${first} max=${last} step=${step} value=${moment}
      onInput=${(event) => { const time = Number(event.target.value); onAt(time + step >= last && last === now ? null : time); }} />
    <div class="spread muted small"><span>${day(first)}</span><span>${last > now ? day(last) : "now"}</span></div>
  </div><//>`;
}

function FactTable({ facts, onName }) {
  const [shown, setShown] = useState(ROWS);
  const name = (value) => html`<button type="button" class="link" onClick=${() => onName(value)}>${value}</button>`;
  const columns = [
    { name: "subject", title: "Subject", value: (fact) => name(fact.subject) },
    { name: "predicate", title: "Predicate", value: (fact) => html`<span class="mono">${fact.predicate}</span>` },
    { name: "object", title: "Object", value: (fact) => name(fact.object) },
    { name: "from", title: "True from", value: (fact) => html`<${Time} at=${fact.valid_from} exact />` },
    { name: "to", title: "Until", value: (fact) => html`<${Time} at=${fact.valid_to} exact />` },
    { name: "confidence", title: "Confidence", end: true, value: (fact) => percent(fact.confidence) },
    { name: "source", title: "Source", value: (fact) => fact.source ?? html`<span class="muted">–</span>` },
  ];
  return html`<${Table} label="Facts" columns=${columns} rows=${facts.slice(0, shown)} rowKey=${(fact) => fact.id}
      empty=${html`<${Empty} title="Nothing was true then">Move the time, or choose Now.<//>`} />
    ${facts.length > shown && html`<div class="more"><${Button} onClick=${() => setShown(shown + 5 * ROWS)}>Show more of ${number(facts.length)}<//></div>`}`;
}

/** What is known of a name: what is true at the time first, then the rest. */
function Details({ name, facts, moment, scope, go, onName, onClose, onEdit, reload }) {
  const [valid, rest] = [facts.filter((fact) => trueAt(fact, moment)), facts.filter((fact) => !trueAt(fact, moment))];
  const list = (some) => html`<ul class="fact-list">${some.map((fact) => html`<${FactItem} key=${fact.id} fact=${fact} name=${name} moment=${moment}
    scope=${scope} go=${go} onName=${onName} onEdit=${onEdit} reload=${reload} />`)}</ul>`;
  return html`<${Card} title=${name} actions=${html`<${Button} kind="quiet" icon="close" label="Close" onClick=${onClose} />`}>
    <div class="stack">
      ${valid.length ? list(valid) : html`<p class="muted">Nothing was true of it at this time.</p>`}
      ${rest.length > 0 && html`<div><h3 class="muted">At other times</h3>${list(rest)}</div>`}
    </div>
  <//>`;
}

function FactItem({ fact, name, moment, scope, go, onName, onEdit, reload }) {
  const outward = fact.subject === name;
  const other = outward ? fact.object : fact.subject;
  const when = fact.begins > moment ? `from ${day(fact.valid_from)}` : Number.isFinite(fact.ends) ? `${day(fact.valid_from)} to ${day(fact.valid_to)}` : `since ${day(fact.valid_from)}`;
  const ended = Number.isFinite(fact.ends);
  const options = { after: reload };
  const said = `${fact.subject} ${fact.predicate} ${fact.object}`;
  return html`<li class=${trueAt(fact, moment) ? "" : "ended"}>
    <div class="spread">
      <div>${!outward && html`<button type="button" class="link" onClick=${() => onName(other)}>${other}</button> `}
        <span class="mono muted">${fact.predicate}</span>${outward ? html` <button type="button" class="link" onClick=${() => onName(other)}>${other}</button>` : html` <span>${name}</span>`}</div>
      ${onEdit && html`<div class="fact-tools">
        <${Button} kind="quiet" icon="edit" label="Correct: ${said}" onClick=${() => onEdit(fact)} />
        ${!ended && html`<${Button} kind="quiet" icon="stop" label="No longer true: ${said}" onClick=${() => change(scope, fact, () => end(scope, fact), { ...options, done: `Ended: ${said}` })} />`}
        <${Button} kind="quiet" icon="trash" label="Delete: ${said}" onClick=${() => change(scope, fact, () => drop(scope, fact), { ...options, done: `Deleted: ${said}` })} />
      </div>`}
    </div>
    <div class="row small muted"><span title="${minute(fact.valid_from)} – ${fact.valid_to ? minute(fact.valid_to) : "still true"}">${when}</span>
      ${fact.confidence < 1 && html`<${Badge}>${percent(fact.confidence)} sure<//>`}
      ${fact.source && html`<${Source} source=${fact.source} scope=${scope} go=${go} />`}</div>
  </li>`;
}

/** Where a fact came from: the name of a session, the id of a message, or whatever its writer gave. */
function Source({ source, scope, go }) {
  const open = async () => {
    try {
      const place = await get(`/sources/${inPath(source)}`, { scope });
      go("sessions", { session: [place.scope, place.session].filter(Boolean).join("/"), at: place.message });
    } catch (error) {
      toast(error.status === 404 ? `“${source}” is no session or message of this scope.` : error.message, { tone: "danger" });
    }
  };
  return html`<span>from <button type="button" class="link underlined" title="Open the source" onClick=${open}>${source}</button></span>`;
}

const local = (time) => (time ? `${day(time)}T${minute(time).slice(-5)}` : "");
const iso = (text) => (text ? new Date(text).toISOString() : null);

/** Add a fact, or correct one. */
function FactDialog({ scope, fact, onClose, after }) {
  const old = fact.id ? fact : null;
  const [given, setGiven] = useState({
    subject: fact.subject ?? "", predicate: fact.predicate ?? "", object: fact.object ?? "", source: fact.source ?? "",
    from: local(fact.valid_from), to: local(fact.valid_to), confidence: String(fact.confidence ?? 1), single: false,
  });
  const set = (name) => (value) => setGiven((last) => ({ ...last, [name]: value }));
  const ready = given.subject.trim() && given.predicate.trim() && given.object.trim();
  const send = async (event) => {
    event.preventDefault();
    const time = (name, was) => (given[name] === local(was) ? (was ?? null) : iso(given[name]));
    const next = { ...fact, ...given, valid_from: time("from", fact.valid_from), valid_to: time("to", fact.valid_to), confidence: Number(given.confidence) };
    const said = `${next.subject} ${next.predicate} ${next.object}`;
    const make = () => (old ? correct(scope, old, next) : add(scope, next));
    if (await change(scope, next, make, { after, done: `${old ? "Corrected" : "Added"}: ${said}` })) onClose();
  };
  return html`<${Dialog} title=${old ? "Correct a fact" : "Add a fact"} onClose=${onClose} actions=${html`<${Button} onClick=${onClose}>Cancel<//>
      <button class="button primary" form="fact-form" disabled=${!ready}>${old ? "Correct" : "Add"}</button>`}>
    <form id="fact-form" class="stack" onSubmit=${send}>
      <${Text} label="Subject" value=${given.subject} onValue=${set("subject")} readonly=${Boolean(old)} placeholder="Alice" maxlength="500" />
      <${Text} label="Predicate" value=${given.predicate} onValue=${set("predicate")} readonly=${Boolean(old)} placeholder="lives_in" maxlength="500" />
      <${Text} label="Object" value=${given.object} onValue=${set("object")} placeholder="Oslo" maxlength="500" autofocus=${Boolean(old)} />
      <div class="columns narrow">
        <${Text} label="True from" hint="Now, if left empty." type="datetime-local" value=${given.from} onValue=${set("from")} />
        <${Text} label="Until" hint="Still true, if left empty." type="datetime-local" value=${given.to} onValue=${set("to")} />
      </div>
      <div class="columns narrow">
        <${Text} label="Confidence, 0 to 1" type="number" min="0" max="1" step="any" required value=${given.confidence} onValue=${set("confidence")} />
        <${Text} label="Source" hint="Such as the name of a session." value=${given.source} onValue=${set("source")} maxlength="500" />
      </div>
      ${!old && html`<${Check} label="There is one at a time: end what was true before" checked=${given.single} onValue=${set("single")} />`}
      ${old && html`<p class="muted small">This replaces the wrong fact. If it was true and has changed, add the new fact instead, and end the old one.</p>`}
    </form>
  <//>`;
}
