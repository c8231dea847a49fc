// JSON whose numbers stay as they were written: 12345678901234567890 and 1.0 are not what JavaScript's numbers make of them.

const ABLE = typeof JSON.rawJSON === "function";
const RISKY = /\d{16}|\d\.\d*0|\d[eE]|-0/; // A quick look: most answers have no such number.
const HELD = ["value", "metadata"]; // Fields with the values of users; all others are numbers to calculate with.

/** Parse JSON; a number that JavaScript would change becomes `JSON.rawJSON`, which `JSON.stringify` writes as it was. */
export const parseExact = (text) =>
  ABLE ? JSON.parse(text, (_, value, context) => (typeof value === "number" && String(value) !== context.source ? JSON.rawJSON(context.source) : value)) : JSON.parse(text);

/** Parse an answer of the server: exact in what users have stored, plain numbers everywhere else. */
export function parseAnswer(text) {
  const plain = JSON.parse(text);
  return ABLE && RISKY.test(text) && HELD.some((name) => text.includes(`"${name}"`)) ? merged(plain, parseExact(text)) : plain;
}

function merged(plain, exact) {
  if (plain === null || typeof plain !== "object") return plain;
  for (const name of Object.keys(plain)) plain[name] = HELD.includes(name) ? exact[name] : merged(plain[name], exact[name]);
  return plain;
}

/** Write JSON for the server. A browser that cannot keep numbers as they are must not write values that have some. */
export function writeExact(body) {
  if (!ABLE && HELD.some((name) => hasNumber(body?.[name])))
    throw new Error("This browser may change numbers while saving. Use a newer one: Chrome 114, Firefox 135 or Safari 18.4.");
  return JSON.stringify(body);
}

const hasNumber = (value) => typeof value === "number" || (value !== null && typeof value === "object" && Object.values(value).some(hasNumber));
