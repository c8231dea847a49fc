// What was typed and is not saved: nothing takes it away without a question.
import { html, useLayoutEffect, useRef, useState } from "./vendor/preact.js";
import { Button, Dialog } from "./ui.js";

const editors = new Set();
window.addEventListener("beforeunload", (event) => editors.size && event.preventDefault());

/** Whether something that was typed is not saved. */
export const anyUnsaved = () => editors.size > 0;

/**
 * Hold the page while `unsaved`. Returns [leave, question, saved]: `leave(then)` asks first, if there is something to lose;
 * `saved()` lets go at once, before the next page is asked for.
 */
export function useUnsaved(unsaved) {
  const [then, setThen] = useState(null);
  const me = useRef({}).current;
  useLayoutEffect(() => {
    if (!unsaved) return;
    editors.add(me);
    return () => editors.delete(me);
  }, [unsaved]);
  const leave = (next) => (unsaved ? setThen(() => next) : next());
  return [leave, then && html`<${Leaving} onStay=${() => setThen(null)} onLeave=${then} />`, () => editors.delete(me)];
}

/** The question whether what was typed may be thrown away. */
export const Leaving = ({ onStay, onLeave }) => html`<${Dialog} title="Leave without saving?" onClose=${onStay}
  actions=${html`<${Button} onClick=${onStay}>Keep writing<//><${Button} kind="danger" onClick=${onLeave}>Leave without saving<//>`}>
  <p>What you typed is not saved yet.</p>
<//>`;
