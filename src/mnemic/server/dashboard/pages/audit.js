// Audit: not there yet.
import { Empty, Page, html } from "../ui.js";

export default function AuditPage({ scope }) {
  return html`<${Page} title="Audit"><${Empty} title="Nothing to see yet">This page of ${scope || "/"} is being built.<//><//>`;
}
