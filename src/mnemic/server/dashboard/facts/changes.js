// Changes of facts. Each concerns one subject and predicate, so undoing it restores what these had before.
import { get, post, remove } from "../api.js";
import { attempt } from "../ui.js";

const MOST = 1000;

/** A fact with its times as numbers, for comparing. */
export const read = (fact) => ({
  ...fact,
  begins: Date.parse(fact.valid_from),
  ends: fact.valid_to ? Date.parse(fact.valid_to) : Infinity,
});

/** All facts, of all times, that match `query`: {subject, predicate, object}, each optional. */
export async function find(scope, query, signal) {
  const found = [];
  for (let cursor = null; ; ) {
    const page = await get("/facts", { scope, history: true, limit: MOST, cursor, ...query }, { signal });
    found.push(...page.items.map(read));
    cursor = page.cursor;
    if (!cursor) return found;
  }
}

const about = ({ subject, predicate, object, valid_from, valid_to, source, confidence, metadata }) => {
  const body = { subject, predicate, object, valid_from, valid_to, source, confidence, metadata };
  return Object.fromEntries(Object.entries(body).filter(([, value]) => value !== null && value !== undefined && value !== ""));
};

export const add = (scope, fact) => post("/facts", { ...about(fact), ...(fact.single && { single: true }) }, { query: { scope } });
export const end = (scope, { subject, predicate, object }, valid_to) => post("/facts/end", { subject, predicate, object, valid_to }, { query: { scope } });
export const drop = (scope, { subject, predicate, object }) => remove("/facts", { query: { scope, subject, predicate, object } });

/** Delete single facts by their ids, whatever else is known of their subject. */
const forget = (scope, facts) => (facts.length ? post("/forget", { ids: facts.map((fact) => fact.id) }, { query: { scope } }) : null);

const text = (fact) => JSON.stringify(about(fact));
const missing = (some, others) => some.filter((one) => !others.some((other) => other.id === one.id && text(other) === text(one)));

/** Go from one state of some facts to another, adding before deleting, so that a failure in between loses nothing. */
async function restore(scope, from, to) {
  const [gone, extra] = [missing(to, from), missing(from, to)];
  const replaced = new Set(gone.map((fact) => fact.id));
  await forget(scope, extra.filter((fact) => replaced.has(fact.id)));
  for (const fact of gone) await add(scope, fact);
  await forget(scope, extra.filter((fact) => !replaced.has(fact.id)));
}

/** Put a corrected fact in the place of a wrong one; what else is known of the subject stays. */
export async function correct(scope, wrong, right) {
  if (right.object !== wrong.object) {
    await add(scope, right);
    return forget(scope, [wrong]);
  }
  await forget(scope, [wrong]);
  try {
    await add(scope, right);
  } catch (error) {
    await add(scope, wrong);
    throw error;
  }
}

/** Make a change to the facts of {subject, predicate}, say that it is done, and offer to undo it. Returns whether it worked. */
export async function change(scope, { subject, predicate }, make, { done, after }) {
  const pair = { subject, predicate };
  let before, changed;
  const undo = async () => {
    const now = await find(scope, pair);
    if (missing(now, changed).length || missing(changed, now).length) throw new Error("These facts have changed since, so this cannot be undone.");
    await restore(scope, now, before);
    await after();
  };
  return attempt(
    async () => {
      before = await find(scope, pair);
      await make();
      changed = await find(scope, pair);
      await after();
    },
    { done, undo },
  );
}
