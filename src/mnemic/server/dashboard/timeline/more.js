// A timeline looks at a bounded number of records in one request: ask again until it has seen all.
import { useEffect, useRef } from "../vendor/preact.js";

/** `load` is what useLoad returned for GET /timeline. */
export function useMore({ value, loading, reload }) {
  const last = useRef(-1);
  useEffect(() => {
    if (!value || loading) return;
    if (value.missing === "more" && value.read > last.current) {
      last.current = value.read;
      reload();
    } else last.current = -1;
  }, [value, loading]);
}
