// Kinds of records: their names, and their colours, which are design tokens.
import { html } from "../ui.js";

export const KINDS = [
  { kind: "message", name: "Messages", one: "message", token: "c2" },
  { kind: "archived", name: "Archived", one: "archived message", token: "c9" },
  { kind: "summary", name: "Summaries", one: "summary", token: "c6" },
  { kind: "memory", name: "Memories", one: "memory", token: "c1" },
  { kind: "fact", name: "Facts", one: "fact", token: "c3" },
  { kind: "note", name: "Notes", one: "note", token: "c5" },
];
export const ROLES = ["system", "user", "assistant", "tool"];
export const kindOf = (kind) => KINDS.find((one) => one.kind === kind) ?? { kind, name: kind, one: kind, token: "c9" };

/** A kind's name with a dot in its colour. */
export const KindName = ({ kind }) => html`<span class="kind ${kindOf(kind).token}">${kindOf(kind).one}</span>`;

/** The scope that a session was opened in: the path without its last name. */
export const parentOf = (path) => path.split("/").slice(0, -1).join("/");
export const nameOf = (path) => path.split("/").at(-1);
