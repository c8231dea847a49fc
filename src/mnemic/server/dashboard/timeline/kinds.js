// Kinds of records: their names, and the classes of their colours.
import { html } from "../ui.js";

export const KINDS = [
  { kind: "message", name: "Messages", one: "message", token: "k2" },
  { kind: "archived", name: "Archived", one: "archived message", token: "k9" },
  { kind: "summary", name: "Summaries", one: "summary", token: "k6" },
  { kind: "memory", name: "Memories", one: "memory", token: "k1" },
  { kind: "fact", name: "Facts", one: "fact", token: "k3" },
  { kind: "note", name: "Notes", one: "note", token: "k5" },
];
export const ROLES = ["system", "user", "assistant", "tool"];
export const kindOf = (kind) => KINDS.find((one) => one.kind === kind) ?? { kind, name: kind, one: kind, token: "k9" };

/** A kind's name with a dot in its colour. */
export const KindName = ({ kind }) => html`<span class="kind ${kindOf(kind).token}">${kindOf(kind).one}</span>`;

/** The scope that a session was opened in: the path without its last name. */
export const parentOf = (path) => path.split("/").slice(0, -1).join("/");
export const nameOf = (path) => path.split("/").at(-1);
