// Text that jobs choose.  It only ever reaches the dashboard as text nodes; here it is also made readable.

const UNPRINTABLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Co}\p{Cn}\p{Zl}\p{Zp}]/gu;
const ESCAPE_SEQUENCE = /\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])/g;
const SHORT = { "\n": "\\n", "\r": "\\r", "\t": "\\t" };

/** Escapes characters that reverse the text direction or are invisible, as the command line does. */
export function plain(text) {
  return text.replace(UNPRINTABLE, escaped);
}

/** A worker's output as a terminal would leave it: without colors, and only the last state of an overwritten line. */
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

const WORD = /(?:'[^']*'|"(?:\\.|[^"\\])*"|\\.|[^\s'"\\])+/gs;

/** A command line as words.  Quotes and backslashes work as in a shell; nothing is expanded. */
export function commandWords(line) {
  if (line.replace(WORD, "").trim() !== "") throw new Error("The command has an unclosed quote or a trailing backslash.");
  return (line.match(WORD) ?? []).map(unquoted);
}

function unquoted(word) {
  return word.replace(/'([^']*)'|"((?:\\.|[^"\\])*)"|\\(.)/gs, (_, single, double, escapedOne) => {
    if (single !== undefined) return single;
    return double === undefined ? escapedOne : double.replace(/\\(["\\$`])/g, "$1");
  });
}
