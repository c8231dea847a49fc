// A conversation: its messages as a chat, what was archived and summarized, what fits into a budget, and deleting with undo.
import { useEffect, useMemo, useRef, useState } from "../vendor/preact.js";
import { get, inPath, remove } from "../api.js";
import { RecordDialog } from "../timeline/record_dialog.js";
import { Badge, Button, Card, Check, Empty, ErrorBox, Loaded, Loading, Slider, Time, html, minute, number, plural, toast, useLoad, usePages, useRested } from "../ui.js";
import { nameOf, parentOf } from "../timeline/kinds.js";

const UNDO = 10_000; // How long a message can be brought back, in milliseconds.
const urlOf = (path) => `/sessions/${inPath(nameOf(path))}`;

/** Pages of messages, newest page first: the ones before come in front. */
function useMessages(path, part, ready = true) {
  const pages = usePages(async (cursor, signal) => {
    if (!ready) return { items: [], cursor: null };
    const page = await get(`${urlOf(path)}/conversation`, { scope: parentOf(path), part, limit: 100, cursor }, { signal });
    return { items: [page.items], cursor: page.cursor };
  }, [path, part, ready]);
  return { ...pages, messages: useMemo(() => [...pages.items].reverse().flat(), [pages.items]) };
}

export function Conversation({ path, params, go, who, onBack, onChanged }) {
  const at = params.at;
  const overview = useLoad((signal) => get(`${urlOf(path)}/overview`, { scope: parentOf(path) }, { signal }), [path]);
  const live = useMessages(path, "messages");
  const [open, setOpen] = useState(null);
  const [budget, setBudget] = useState(Number(params.budget) >= 1 ? Math.floor(Number(params.budget)) : null);
  const restedBudget = useRested(budget);
  useEffect(() => {
    if (String(restedBudget ?? "") !== (params.budget ?? "")) go(null, { ...params, budget: restedBudget }, { replace: true });
  }, [restedBudget]);
  const gone = useDeleting(path, () => (overview.reload(), live.reload(), onChanged?.()));
  const messages = live.messages.filter((one) => !gone.ids.has(one.id));
  const fit = useFit(path, budget, overview.value);
  const may = who?.rights.includes("write");
  const chat = useRef(null);
  const placed = useRef(null); // Where the chat was opened: at a message, or at the newest.
  useEffect(() => {
    const sought = at ?? "newest";
    if (live.loading || !messages.length || placed.current === sought) return;
    const found = at && document.getElementById(`message-${at}`);
    if (at && !found && live.more) return live.more();
    placed.current = sought;
    if (found) found.scrollIntoView({ block: "center" });
    else chat.current.lastElementChild.lastElementChild?.scrollIntoView({ block: "end" });
  }, [at, live.loading, live.messages]);
  const details = (one) => setOpen({ kind: one.archived ? "archived" : "message", id: one.id, scope: path });
  return html`<section class="conversation" aria-label="Conversation ${nameOf(path)}">
    <${Card}>
      <div class="row back"><${Button} icon="back" onClick=${onBack}>All sessions<//></div>
      <${Loaded} of=${overview} lines=${3}>${(found) => html`<${Head} found=${found} budget=${budget} setBudget=${setBudget} fit=${fit} shown=${messages} />`}<//>
    <//>
    ${overview.error && !live.messages.length
      ? null
      : live.error && !live.messages.length
      ? html`<${ErrorBox} error=${live.error} onRetry=${live.reload} />`
      : html`<div class="chat" ref=${chat}>
          ${overview.value?.summary && html`<${Summary} summary=${overview.value.summary} fits=${fit.ids && fit.summary} marked=${fit.ids !== null} />`}
          ${overview.value?.archived > 0 && html`<${Archived} path=${path} count=${overview.value.archived} tokens=${overview.value.archived_tokens} details=${details} />`}
          ${live.more && html`<div class="more"><${Button} onClick=${live.more}>Show earlier messages<//></div>`}
          ${live.loading && !live.messages.length && html`<${Loading} lines=${10} />`}
          ${!live.loading && !messages.length && html`<${Empty} title="No messages in this session">${overview.value?.archived ? "All of them were archived." : "Its messages were deleted, or have expired."}<//>`}
          <${Messages} messages=${messages} fit=${fit.ids} at=${at} details=${details} onDelete=${may ? gone.remove : null} />
        </div>`}
    ${open && html`<${RecordDialog} key=${open.id} place=${open} go=${go} who=${who} onClose=${() => setOpen(null)} onChanged=${live.reload} />`}
  </section>`;
}

/** Which messages fit into a budget, as the server chooses them. */
function useFit(path, budget, session) {
  const rested = useRested(budget, 60);
  const found = useLoad(
    async (signal) => (rested === null ? null : { budget: rested, ...(await get(`${urlOf(path)}/fit`, { scope: parentOf(path), max_tokens: rested }, { signal })) }),
    [path, rested, session?.last_activity, session?.messages],
  );
  const ids = useMemo(() => (budget !== null && found.value ? new Set(found.value.ids) : budget !== null && found.error ? new Set() : null), [found.value, found.error, budget === null]);
  return { ids, summary: found.value?.summary ?? false, tokens: found.value?.tokens ?? 0, budget: found.value?.budget ?? 0, problem: found.value?.problem ?? null, error: budget === null ? null : found.error };
}

/** Messages are hidden at once and deleted when there is no undo any more, or when the page is left. */
function useDeleting(path, onDeleted) {
  const [ids, setIds] = useState(new Set());
  const waiting = useRef(new Map());
  const now = (id) => {
    if (!waiting.current.has(id)) return;
    clearTimeout(waiting.current.get(id));
    waiting.current.delete(id);
    const back = () => setIds((last) => new Set([...last].filter((other) => other !== id)));
    const send = async () => remove(`${urlOf(path)}/messages/${inPath(id)}`, { query: { scope: parentOf(path) } });
    send().then(onDeleted, (error) => (back(), toast(error.message, { tone: "danger" })));
  };
  useEffect(() => {
    const leave = () => [...waiting.current.keys()].forEach(now);
    window.addEventListener("pagehide", leave);
    return () => (window.removeEventListener("pagehide", leave), leave());
  }, []);
  return {
    ids,
    remove: (message) => {
      setIds((last) => new Set([...last, message.id]));
      waiting.current.set(message.id, setTimeout(() => now(message.id), UNDO));
      toast("The message is being deleted", {
        undo: async () => {
          clearTimeout(waiting.current.get(message.id));
          if (!waiting.current.delete(message.id)) throw new Error("It is deleted already.");
          setIds((last) => new Set([...last].filter((other) => other !== message.id)));
        },
      });
    },
  };
}

function Head({ found, budget, setBudget, fit, shown }) {
  const limits = [found.max_messages && `at most ${plural(found.max_messages, "message")}`, found.max_tokens && `at most ${plural(found.max_tokens, "token")}`].filter(Boolean);
  const most = Math.max(100, Math.ceil((found.tokens + (found.summary ? found.summary.text.length / 3 : 0)) / 50) * 50);
  const told = [
    `${plural(found.messages, "message")}, ${plural(found.tokens, "token")}`,
    found.archived > 0 && `${number(found.archived)} archived`,
    limits.length > 0 && `${limits.join(", ")}, then ${{ archive: "archived", drop: "dropped", summarize: "summarized", function: "handed to a function" }[found.overflow]}`,
    found.expires && html`expires <${Time} at=${found.expires} />`,
  ].filter(Boolean);
  return html`<div class="stack">
    <div><h2 class="session-title" dir="auto">${found.title ?? found.name}</h2>
      <p class="muted small">${found.scope || "/"} · ${found.name} · <${Time} at=${found.last_activity} /></p>
      <p class="small">${told.map((one, i) => html`<span key=${i}>${i > 0 && " · "}${one}</span>`)}</p></div>
    <div class="budget">
      <${Check} label="Show what fits into a prompt" checked=${budget !== null} onValue=${(on) => setBudget(on ? Math.min(most, Math.max(50, Math.round(found.tokens / 2))) : null)} />
      ${budget !== null && html`<${Slider} label="Budget in tokens" value=${budget} onValue=${setBudget} min=${10} max=${most} step=${10} exact="Exact budget" />
        <p class="small" role="status">${fit.error
          ? html`<span class="error-text">${fit.error.message}</span>`
          : fit.ids && fit.problem
          ? html`<span class="error-text">${fit.problem}</span>`
          : fit.ids && html`${plural(fit.ids.size, "message")} of ${number(found.messages)} fit${fit.summary ? ", with the summary" : ""}: ${number(fit.tokens)} of ${number(fit.budget)} tokens.`}</p>`}
    </div>
  </div>`;
}

const Summary = ({ summary, fits, marked }) => html`<details class="folded ${marked ? (fits ? "in" : "out") : ""}">
  <summary>Summary${summary.messages ? ` of ${plural(summary.messages, "earlier message")}` : ""}</summary>
  <p class="text" dir="auto">${summary.text}</p>
</details>`;

function Archived({ path, count, tokens, details }) {
  const [open, setOpen] = useState(false);
  const pages = useMessages(path, "archived", open);
  return html`<details class="folded" onToggle=${(e) => setOpen(e.target.open)}>
    <summary>${plural(count, "archived message")}, ${plural(tokens, "token")}: in recall, not in the window</summary>
    ${open && (pages.error ? html`<${ErrorBox} error=${pages.error} onRetry=${pages.reload} />` : pages.loading && !pages.messages.length ? html`<${Loading} />` : html`
      ${pages.more && html`<div class="more"><${Button} onClick=${pages.more}>Show earlier messages<//></div>`}
      <${Messages} messages=${pages.messages} fit=${null} details=${details} onDelete=${null} />`)}
  </details>`;
}

/** Messages in order; the results of a call are folded into it. */
function Messages({ messages, fit, at, details, onDelete }) {
  const results = useMemo(() => {
    const calls = new Map(messages.flatMap((one) => one.calls.map((call) => [call.id, one.id])));
    const found = new Map();
    for (const one of messages)
      for (const id of one.answers) if (calls.has(id)) found.set(one.id, { to: calls.get(id), call: id, message: one });
    return found;
  }, [messages]);
  const byCall = new Map([...results.values()].map((one) => [one.call, one.message]));
  return html`<ol class="messages">${messages.filter((one) => !results.has(one.id)).map((one) => html`<${Message} key=${one.id} one=${one} byCall=${byCall} fit=${fit} marked=${one.id === at} details=${details} onDelete=${onDelete} />`)}</ol>`;
}

function Message({ one, byCall, fit, marked, details, onDelete }) {
  const fits = fit && (fit.has(one.id) ? "in" : "out");
  const tokens = one.tokens + one.calls.reduce((sum, call) => sum + (byCall.get(call.id)?.tokens ?? 0), 0);
  return html`<li id="message-${one.id}" class="message ${one.role} ${fits ?? ""} ${marked ? "marked" : ""}">
    <div class="message-head">
      <strong class=${one.name ? undefined : "role"}>${one.name ?? one.role}</strong><${Time} at=${one.time} exact /><span class="num">${plural(tokens, "token")}</span>
      ${one.pinned && one.role !== "system" && html`<${Badge} tone="accent">pinned<//>`}
      ${one.importance !== null && html`<${Badge}>importance ${number(one.importance)}<//>`}
      ${fits && html`<span class=${fits === "in" ? "fits" : "muted"}>${fits === "in" ? "in the window" : "left out"}</span>`}
      <span class="message-actions">
        <${Button} kind="quiet" icon="pin" label="Pin or change this message" onClick=${() => details(one)} />
        ${onDelete && html`<${Button} kind="quiet" icon="trash" label="Delete this message" onClick=${() => onDelete(one)} />`}
      </span>
    </div>
    ${one.text && html`<${LongText} text=${one.text} length=${one.length} />`}
    ${one.images.map((image, i) => html`<p key=${i} class="image"><span class="badge">image</span> ${image}</p>`)}
    ${one.calls.map((call, i) => html`<details key=${i} class="call">
      <summary><code>${call.name}</code>${byCall.has(call.id) ? html`<span class="muted"> answered, ${plural(byCall.get(call.id).tokens, "token")}</span>` : call.id !== null && html`<${Badge} tone="warn">no answer<//>`}</summary>
      <pre>${pretty(call.arguments)}</pre>
      ${byCall.has(call.id) && html`<pre>${pretty(byCall.get(call.id).text)}</pre>`}
    </details>`)}
  </li>`;
}

function LongText({ text, length }) {
  const [whole, setWhole] = useState(false);
  const long = text.length > 1500;
  return html`<p class="text" dir="auto">${whole || !long ? text : `${text.slice(0, 1200)} …`}</p>
    ${long && html`<${Button} kind="quiet" aria-expanded=${whole ? "true" : "false"} onClick=${() => setWhole(!whole)}>${whole ? "Show less" : `Show all ${number(length)} characters`}<//>`}
    ${whole && length > text.length && html`<p class="muted small">The first ${number(text.length)} of ${number(length)} characters.</p>`}`;
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}
