// Text that somebody else chose.  It only ever reaches the page as text; here it is made readable, too.

const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const ESCAPE_SEQUENCE = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Characters that would turn a line round or stay unseen are written out, as on the command line. */
export function plain(text) {
  return text.replace(UNPRINTABLE, escaped);
}

/** Output of a worker as a terminal would leave it: no colours, and of a line that was overwritten its last state. */
export function asOnTerminal(output) {
  return output
    .replace(ESCAPE_SEQUENCE, "")
    .split("\n")
    .map((line) => plainExceptTabs(line.replace(/\r+$/, "").replace(/^.*\r/s, "")))
    .join("\n");
}

function plainExceptTabs(line) {
  return line.replace(UNPRINTABLE, (character) => (character === "\t" ? character : escaped(character)));
}

function escaped(character) {
  const code = character.codePointAt(0);
  if (SHORT[character]) return SHORT[character];
  if (code <= 0xff) return `\\x${hex(code, 2)}`;
  return code <= 0xffff ? `\\u${hex(code, 4)}` : `\\U${hex(code, 8)}`;
}

function hex(code, width) {
  return code.toString(16).padStart(width, "0");
}
