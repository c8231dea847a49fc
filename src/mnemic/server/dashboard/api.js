// The only place that sends requests: /api/v1, problem+json errors, the CSRF token, cancelling.
import { parseAnswer, writeExact } from "./exact.js";

let csrf = null;
let pending = 0;

/** Shows that something loads: the page has a thin bar at its top then. */
function count(change) {
  pending += change;
  document.documentElement.toggleAttribute("data-busy", pending > 0);
}

/** An error of a request: `status` (0 if there was no answer), `title`, `detail`, `current` of a conflict. */
export class ApiError extends Error {
  constructor(status, problem) {
    super(problem.detail || problem.title || `HTTP ${status}`);
    this.status = status;
    this.title = problem.title ?? "";
    this.detail = problem.detail ?? "";
    this.current = problem.current;
  }
}

/** Send a request. `query` values that are null, undefined or "" are left out; arrays are repeated. */
export async function request(method, path, { query, body, headers, signal } = {}) {
  const place = path.startsWith("/dashboard/") ? path : `/api/v1${path}`;
  const url = new URL(place, location.origin);
  if (url.pathname !== place) throw new Error(`This address would lead elsewhere, so nothing was sent: ${place}`);
  for (const [name, value] of Object.entries(query ?? {}))
    for (const one of Array.isArray(value) ? value : [value])
      if (one !== null && one !== undefined && one !== "") url.searchParams.append(name, String(one));
  const sent = { Accept: "application/json", ...headers };
  if (body !== undefined) sent["Content-Type"] ??= "application/json";
  if (csrf && method !== "GET") sent["X-CSRF-Token"] = csrf;
  const content = body === undefined || typeof body === "string" ? body : writeExact(body);
  let response;
  count(1);
  try {
    response = await fetch(url, {
      method,
      headers: sent,
      body: content,
      credentials: "same-origin",
      signal,
    });
  } catch (error) {
    throw lost(error);
  } finally {
    count(-1);
  }
  csrf = response.headers.get("X-CSRF-Token") ?? csrf; // the first key, made here, begins a session
  if (response.status === 401 && path !== "/dashboard/login") window.dispatchEvent(new Event("mnemic-signed-out"));
  if (!response.ok) throw new ApiError(response.status, await response.json().catch(() => ({ title: response.statusText })));
  return response;
}

/** The error of a request that got no answer, or half of one; a request that was cancelled keeps its own. */
const lost = (error) => (error.name === "AbortError" ? error : new ApiError(0, { title: "No answer", detail: "The server does not answer. Is it still running?" }));

async function parsed(response) {
  let text;
  try {
    text = await response.text();
  } catch (error) {
    throw lost(error);
  }
  return text ? parseAnswer(text) : null;
}

export const get = async (path, query, options) => parsed(await request("GET", path, { ...options, query }));
export const post = async (path, body, options) => parsed(await request("POST", path, { ...options, body }));
export const put = async (path, body, options) => parsed(await request("PUT", path, { ...options, body }));
export const patch = async (path, body, options) => parsed(await request("PATCH", path, { ...options, body }));
export const remove = async (path, options) => parsed(await request("DELETE", path, options));

/** Return who is signed in: {name, scope, rights}; null if nobody is. */
export async function whoAmI() {
  const found = await get("/dashboard/session");
  csrf = found.csrf ?? null;
  return found.signed_in ? found : null;
}

/** Sign in with an API key. */
export const signIn = (key) => post("/dashboard/login", { key });

/** Sign out; the cookie is gone afterwards. */
export const signOut = () => post("/dashboard/logout");

/** Write a name as one segment of a path. Browsers remove the segments "." and "..", however written, so these are refused. */
export function inPath(name) {
  if (name === "." || name === "..") throw new Error(`No address can have the name “${name}”, so this page cannot reach it. Use the Python API or the command line.`);
  return encodeURIComponent(name);
}
