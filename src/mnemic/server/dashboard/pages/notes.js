// Notes: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function NotesPage({ scope }) {
  return html`<${Page} title="Notes"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
