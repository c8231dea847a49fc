// Icons: 16 by 16 line drawings, as paths.
import { html } from "./vendor/preact.js";

const PATHS = {
  recall: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10Zm3.6-1.4L14 14",
  timeline: "M2 4h7M5 8h9M2 12h6",
  sessions: "M2.5 3.5h11v7h-6L4.5 13v-2.5h-2z",
  overview: "M2.5 2.5h4.5v4.5H2.5zM9 2.5h4.5v4.5H9zM2.5 9h4.5v4.5H2.5zM9 9h4.5v4.5H9z",
  facts: "M4 6a2 2 0 1 0 0-4 2 2 0 0 0 0 4Zm8 2a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM6 14a2 2 0 1 0 0-4 2 2 0 0 0 0 4ZM5.9 4.6l4.3 1M5.5 10.1 4.4 5.9M7.6 10.9l3.1-3.3",
  notes: "M4 2.5h5.5L12.5 5.5v8H4zM9.5 2.5v3h3M6 8.5h4M6 11h4",
  audit: "M8 2 3 4v4c0 3 2 5 5 6 3-1 5-3 5-6V4zM5.8 8l1.6 1.6L10.4 6.5",
  keys: "M5 12a3 3 0 1 0 0-6 3 3 0 0 0 0 6Zm2.2-5.1L13 2.5M10.5 4.4l1.8 1.8",
  menu: "M2.5 4.5h11M2.5 8h11M2.5 11.5h11",
  close: "M4 4l8 8M12 4l-8 8",
  up: "M8 12.5v-9M4.5 7 8 3.5 11.5 7",
  down: "M8 3.5v9M4.5 9 8 12.5 11.5 9",
  check: "M3.5 8.5 6.5 11.5 12.5 5",
  chevron: "M6 3.5 10.5 8 6 12.5",
  expand: "M4.5 6 8 9.5 11.5 6",
  plus: "M8 3v10M3 8h10",
  minus: "M3 8h10",
  fit: "M2.5 6v-3.5H6M10 2.5h3.5V6M13.5 10v3.5H10M6 13.5H2.5V10",
  back: "M10 3.5 5.5 8 10 12.5",
  stop: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12ZM5 8h6",
  copy: "M5.5 5.5h8v8h-8zM10.5 5.5v-3h-8v8h3",
  trash: "M2.5 4.5h11M6 4.5v-2h4v2M4 4.5l.6 9h6.8l.6-9",
  edit: "M3 13l.6-2.8L10.8 3l2.2 2.2-7.2 7.2z",
  download: "M8 2.5v7.5M4.5 7 8 10.5 11.5 7M2.5 13.5h11",
  system: "M2.5 3.5h11v7h-11zM6 13.5h4",
  light: "M8 10.5a2.5 2.5 0 1 0 0-5 2.5 2.5 0 0 0 0 5ZM8 1.5v1.5M8 13v1.5M1.5 8H3M13 8h1.5M3.4 3.4l1 1M11.6 11.6l1 1M3.4 12.6l1-1M11.6 4.4l1-1",
  dark: "M13 9.5A5.5 5.5 0 0 1 6.5 3 5.5 5.5 0 1 0 13 9.5Z",
  exit: "M6 2.5H3v11h3M10.5 5 13.5 8l-3 3M13.5 8H6",
  alert: "M8 2 14.5 13.5h-13zM8 6.5v3M8 11.5v.1",
  empty: "M2.5 8.5 4.5 3h7l2 5.5v4.5h-11zM2.5 8.5h3.5l.8 1.5h2.4l.8-1.5h3.5",
  filter: "M2.5 4h11M4.5 8h7M6.5 12h3",
  pin: "M6 2.5h4M6.5 2.5v4L4.5 9h7l-2-2.5v-4M8 9v4.5",
};

/** An icon; decorative, so the element around it needs a name. */
export const Icon = ({ name }) => html`<svg class="icon" viewBox="0 0 16 16" aria-hidden="true" focusable="false">
  <path d=${PATHS[name]} fill="none" stroke="currentColor" stroke-width="1.4" stroke-linecap="round" stroke-linejoin="round" />
</svg>`;
