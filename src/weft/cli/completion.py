"""``weft completion``: lets bash, zsh and fish complete commands, options and job ids.

The scripts ask ``weft completion words -- WORD...`` for what could stand where the cursor is.  It never fails and
never waits long: without a controller there are simply no ids to offer.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Annotated, Any

from weft.cli import VERBS
from weft.cli.verb import Argument, Verb
from weft.errors import UsageError, WeftError

TAKE_IDS = ("cancel", "explain", "logs", "status", "trace", "wait")
ONLY_ACTIVE = ("cancel", "wait")
_PATIENCE_S = 1.0

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


def completion(shell: Annotated[str, Argument("SHELL", help="bash, zsh or fish")]) -> None:
    """Print a script that lets your shell complete commands, options and job ids.

    bash: `eval "$(weft completion bash)"` in ~/.bashrc. zsh: the same in ~/.zshrc, after compinit.
    fish: `weft completion fish > ~/.config/fish/completions/weft.fish`.
    """
    if shell not in SCRIPTS:
        raise UsageError(f"there is no script for {shell!r}: expected one of {', '.join(SCRIPTS)}")
    print(SCRIPTS[shell], end="")


def candidates(words: list[str]) -> list[str]:
    """What could stand in the place of the last of ``words``, which may be unfinished or empty."""
    *before, last = words or [""]
    if not before:
        return [verb for verb in sorted(VERBS) if verb.startswith(last)]
    verb = before[0]
    if verb not in VERBS or "--" in before:
        return []
    found = _options(verb) if last.startswith("-") else _ids(verb) if verb in TAKE_IDS else _subcommands(verb)
    return [word for word in found if word.startswith(last) and word not in before[1:]]


def _options(verb: str) -> list[str]:
    app = _app(verb)
    if isinstance(app, Verb):
        return sorted(app.flags())
    options = (name for parameter in _typer_command(app).params for name in parameter.opts if name.startswith("--"))
    return sorted({*options, "--help"})


def _subcommands(verb: str) -> list[str]:
    app = _app(verb)
    if verb == "completion":
        return sorted(SCRIPTS)
    return [] if isinstance(app, Verb) else sorted(getattr(_typer_command(app), "commands", {}))


def _app(verb: str) -> Any:
    return importlib.import_module(VERBS[verb][0]).app


def _typer_command(app: Any) -> Any:
    import typer

    return typer.main.get_command(app)


def _ids(verb: str) -> list[str]:
    from weft.client import Client
    from weft.core.status_rows import FINAL_STATES

    try:
        rows = Client(timeout_s=_PATIENCE_S).jobs()
    except WeftError:
        return []
    # The newest first: who completes an id mostly wants one of the last.
    return [row["id"] for row in reversed(rows) if verb not in ONLY_ACTIVE or row["state"] not in FINAL_STATES]


class _Completion(Verb):
    """What follows ``words --`` is the user's unfinished line, not options of ours."""

    def __call__(self, args: Sequence[str], prog_name: str, **given: Any) -> None:
        if list(args[:2]) == ["words", "--"]:
            for word in candidates(list(args[2:])):
                print(word)
            return
        super().__call__(args, prog_name, **given)


app = _Completion(completion)
