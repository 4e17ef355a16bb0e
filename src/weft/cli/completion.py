"""``weft completion``: lets bash, zsh, and fish complete commands, options, and job ids.

The scripts call ``weft completion words -- WORD...`` to get the candidates for the last word.  That call never fails
and never takes long: without a controller it simply offers no ids.
"""

from __future__ import annotations

from typing import Annotated

from weft.cli import VERBS, load
from weft.cli.verb import Group
from weft.core.command_line import Argument, Tail
from weft.core.nearest_name import unknown_name
from weft.errors import UsageError, WeftError

TAKE_IDS = ("cancel", "change", "explain", "logs", "status", "trace", "wait")
ONLY_ACTIVE = ("cancel", "change", "wait")
_TIMEOUT_S = 1.0

SCRIPTS = {
    "bash": """\
_weft() {
    local IFS=$'\\n'
    COMPREPLY=($(compgen -W "$(weft completion words -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)" -- "$2"))
}
complete -o default -F _weft weft
""",
    "zsh": """\
#compdef weft
_weft() {
    local -a found
    found=("${(@f)$(weft completion words -- "${(@)words[2,CURRENT]}" 2>/dev/null)}")
    compadd -a found || _files
}
compdef _weft weft
""",
    "fish": """\
function __weft_words
    weft completion words -- (commandline -opc)[2..] (commandline -ct) 2>/dev/null
end
complete -c weft -a '(__weft_words)'
""",
}


def completion(
    shell: Annotated[str, Argument("SHELL", "bash, zsh, or fish")],
    words: Annotated[list[str] | None, Tail("WORD...")] = None,
) -> None:
    """Print a script that lets your shell complete commands, options, and job ids.

    bash: add `eval "$(weft completion bash)"` to ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: run `weft completion fish > ~/.config/fish/completions/weft.fish`.

    The scripts call `weft completion words -- WORD...`, which prints the candidates for the last WORD.
    """
    if shell == "words" and words is not None:
        for word in candidates(words):
            print(word)
    elif shell in SCRIPTS:
        print(SCRIPTS[shell], end="")
    else:
        raise UsageError(unknown_name("completion script for", shell, SCRIPTS))


def candidates(words: list[str]) -> list[str]:
    """What the last of ``words``, which may be incomplete or empty, could become."""
    *before, last = words or [""]
    if not before:
        return [verb for verb in sorted(VERBS) if verb.startswith(last)]
    verb = before[0]
    if verb not in VERBS or "--" in before:
        return []
    found = _options(before) if last.startswith("-") else _ids(verb) if verb in TAKE_IDS else subcommands(verb)
    return [word for word in found if word.startswith(last) and word not in before[1:]]


def subcommands(verb: str) -> list[str]:
    if verb == "completion":
        return sorted(SCRIPTS)
    command = load(verb)
    return sorted(command.verbs) if isinstance(command, Group) else []


def _options(before: list[str]) -> list[str]:
    command = load(before[0])
    if not isinstance(command, Group):
        return command.flags()
    chosen = next((word for word in before[1:] if word in command.verbs), None)
    return command.verbs[chosen].flags() if chosen else ["--help"]


def _ids(verb: str) -> list[str]:
    from weft.client import Client
    from weft.core.status_rows import FINAL_STATES

    try:
        rows = Client(timeout_s=_TIMEOUT_S).jobs()
    except WeftError:
        return []
    # Newest first: the wanted job is usually a recent one.
    return [row["id"] for row in reversed(rows) if verb not in ONLY_ACTIVE or row["state"] not in FINAL_STATES]
