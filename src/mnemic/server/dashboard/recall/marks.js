// Marked questions: kept in this browser, measured for the settings A and B, and written as a recall set.
import { useEffect, useState } from "../vendor/preact.js";
import { post } from "../api.js";
import { refOf } from "./hits.js";
import { body } from "./settings.js";

const KEY = "mnemic.marks";
const DEPTH = 50; // as deep as `mnemic eval` looks
const AT_ONCE = 3;

/** All marks: {scope: {question: [{kind, scope, id}, …]}}. */
function read() {
  try {
    const found = JSON.parse(localStorage.getItem(KEY) ?? "{}");
    return found && typeof found === "object" ? found : {};
  } catch {
    return {};
  }
}

/** The marks of a scope, and a function that marks a hit of a question as right, or no longer. */
export function useMarks(scope) {
  const [all, setAll] = useState(read);
  const here = all[scope] ?? {};
  const write = (questions) => {
    const next = { ...read(), [scope]: questions };
    localStorage.setItem(KEY, JSON.stringify(next));
    setAll(next);
  };
  const toggle = (question, hit) => {
    const { kind, scope: at, id } = hit;
    const before = here[question] ?? [];
    const without = before.filter((one) => refOf(one) !== refOf(hit));
    const after = without.length < before.length ? without : [...before, { kind, scope: at, id }];
    const { [question]: _, ...others } = here;
    write(after.length ? { ...others, [question]: after } : others);
  };
  return { marks: here, toggle, replace: write };
}

/** The marks of a scope as a recall set, which `mnemic eval` reads. */
export function asRecallSet(scope, marks) {
  const questions = Object.entries(marks).map(([question, evidence], i) => ({
    id: String(i + 1),
    question,
    evidence: evidence.map((one) => ({ ...one, scope: one.scope || "/" })),
  }));
  return `${JSON.stringify({ id: "recall-lab", scope: scope || "/", questions })}\n`;
}

/** Let the browser save a text as a file. */
export function download(name, text) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob([text], { type: "application/x-ndjson" }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

/** Where the first right hit is, from 1; 0 if it is not among the hits. */
export const firstRight = (hits, evidence) => {
  const right = new Set(evidence.map(refOf));
  return hits.findIndex((hit) => right.has(refOf(hit))) + 1;
};

/** Share of questions with a right hit among the first k, and the mean reciprocal rank of the first right one. */
export function measured(ranks, k) {
  const known = Object.values(ranks);
  if (!known.length) return null;
  const mean = (values) => values.reduce((sum, value) => sum + value, 0) / known.length;
  return { hitRate: mean(known.map((rank) => (rank > 0 && rank <= k ? 1 : 0))), mrr: mean(known.map((rank) => (rank ? 1 / rank : 0))) };
}

/**
 * Ask every marked question with the settings: returns {ranks, done, error}, where `ranks` has the place of the first
 * right hit of each question that was asked so far.
 */
export function useRanks(scope, marks, settings) {
  const [state, setState] = useState({ ranks: {}, done: false, error: null });
  const key = settings && JSON.stringify([scope, marks, body("", settings, DEPTH)]);
  useEffect(() => {
    setState({ ranks: {}, done: false, error: null });
    if (!settings) return undefined;
    const control = new AbortController();
    const left = Object.entries(marks);
    const ranks = {};
    const work = async () => {
      for (let next = left.shift(); next && !control.signal.aborted; next = left.shift()) {
        const [question, evidence] = next;
        const { hits } = await post("/recall", body(question, settings, DEPTH), { query: { scope }, signal: control.signal });
        ranks[question] = firstRight(hits, evidence);
      }
    };
    const timer = setTimeout(() => {
      Promise.all(Array.from({ length: AT_ONCE }, work)).then(
        () => control.signal.aborted || setState({ ranks, done: true, error: null }),
        (error) => control.signal.aborted || (control.abort(), setState({ ranks, done: true, error })),
      );
    }, 150);
    return () => (clearTimeout(timer), control.abort());
  }, [key]);
  return state;
}
