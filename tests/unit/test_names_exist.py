"""A name in the docs, a docstring or a comment that no longer exists sends its reader looking for nothing."""

from __future__ import annotations

import ast
import builtins
import io
import re
import sys
import tokenize
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest

from weft.cli import VERBS, load
from weft.cli.verb import Group

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
SOURCES = sorted((ROOT / "src").rglob("*.py"))
CODE = {path for folder in ("src", "tests", "benchmarks", "examples") for path in (ROOT / folder).rglob("*.py")}
TICKED = re.compile(r"(`+)([^`\n]+)\1")
CODE_BLOCK = re.compile(r"^```(?:console|bash).*?^```", re.MULTILINE | re.DOTALL)
ANY_BLOCK = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
FILE = re.compile(r"[\w./-]*\w\.(?:py|md|js)")
COMMAND = re.compile(r"(?:^|\s|\()weft ([a-z]+)\b(.*)")
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z-]*")
NAME = re.compile(r"(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:\(\))?")
# A word is taken for a name in code if it looks like one: snake_case, CamelCase, dotted, or called.
LOOKS_LIKE_CODE = re.compile(r".*(?:_|\.|\(\)|[a-z][A-Z]).*")

# Names of other projects that our own code never mentions.
FOREIGN_NAMES = {
    *("FileStore", "list_keys", "algorithms", "all_to_all", "all_to_all_single", "wait_tensor", "vector_to_parameters"),
    *("out_proj", "flatten_parameters", "_foreach_"),
    *("batched_grad_copy", "bucket_cap_mb_list", "check_reduction", "delay_all_reduce_named_params", "device_mesh"),
    *("forward_sync_buffers", "init_sync", "join_device", "join_hook", "join_process_group", "mixed_precision"),
    *("output_device", "param_to_hook_all_reduce", "skip_all_reduce_unused_params", "static_graph", "to_kwargs"),
    *("SCHED_IDLE", "epoll_wait", "sched_yield", "HttpOnly", "max_dgram_qlen"),
    *("OTEL_EXPORTER_OTLP_HEADERS", "OTEL_SERVICE_NAME"),
    *("SLURM_JOB_ID", "SLURM_NTASKS", "SLURM_PROCID", "SLURM_RESTART_COUNT"),
}
FOREIGN_OPTIONS = {
    *("--dependency", "--export", "--nice", "--parsable", "--requeue", "--start", "--test-only"),  # Slurm
    *("--node-ip-address", "--node-name", "--num-cpus", "--num-gpus", "--block", "--head", "--labels"),  # Ray
    *("--node-manager-port", "--object-manager-port", "--min-worker-port", "--generate"),  # Ray
    "--build-arg",  # podman and docker
    "--lr",  # of a training script
    "--socket",  # of `python -m weft.crossover.server`
}
# Made-up names in examples, and the unit prefix of the naming rule.
EXAMPLES = {"name.md", "APP.csv", "constraints.txt", "num_"}


def _texts(path: Path) -> Iterator[str]:
    """The prose of a file."""
    text = path.read_text()
    if path.suffix == ".md":
        yield ANY_BLOCK.sub("", text)
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield ast.get_docstring(node, clean=False) or ""
    comments = (
        token.string for token in tokenize.generate_tokens(io.StringIO(text).readline) if token.type == tokenize.COMMENT
    )
    yield "\n".join(comments)


def _ticked(path: Path) -> list[str]:
    return [match[2].strip() for text in _texts(path) for match in TICKED.finditer(text)]


@cache
def _vocabulary() -> frozenset[str]:
    """Every identifier that occurs in the code."""
    found = {*dir(builtins), *sys.stdlib_module_names, *FOREIGN_NAMES}
    for path in CODE - {Path(__file__)}:
        found.update(path.relative_to(ROOT).with_suffix("").parts)
        for node in ast.walk(ast.parse(path.read_text())):
            for field in ("id", "attr", "name", "arg", "module"):
                found.update(str(getattr(node, field, None) or "").split("."))
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found.update(re.findall(r"\w+", node.value) if len(node.value) < 80 else ())
    return frozenset(found)


@cache
def _classes() -> dict[str, set[str]]:
    """The members of every class of ours, by class name; bases are included where they are ours too."""
    members: dict[str, set[str]] = defaultdict(set)
    bases: dict[str, set[str]] = defaultdict(set)
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ClassDef):
                bases[node.name].update(ast.unparse(base).partition("[")[0].rpartition(".")[2] for base in node.bases)
                for inner in ast.walk(node):
                    if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                        members[node.name].add(inner.name)
                    elif isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Store):
                        members[node.name].add(inner.id)
                    elif isinstance(inner, ast.Attribute):
                        members[node.name].add(inner.attr)
    for name, above in bases.items():
        for base in above:
            members[name] |= members.get(base, {"*"})
    return dict(members)


@cache
def _options(verb: str) -> frozenset[str]:
    command = load(verb)
    verbs = command.verbs.values() if isinstance(command, Group) else [command]
    return frozenset(flag for one in verbs for flag in one.flags())


def _is_file(name: str, path: Path) -> bool:
    near = (ROOT, ROOT / "src" / "weft", ROOT / "tests", ROOT / "docs", path.parent)
    return any((folder / name).exists() for folder in near) or ("/" not in name and any(ROOT.glob(f"[!.]*/**/{name}")))


def _is_name(name: str) -> bool:
    parts = name.removesuffix("()").split(".")
    for owner, member in pairwise(parts):
        if owner in _classes() and not {member, "*"} & _classes()[owner]:
            return False
    return all(part in _vocabulary() for part in parts)


def _unknown_options(command: str) -> Iterator[str]:
    """Of a line with a weft command in it; what comes after ``--`` belongs to somebody else."""
    if (found := COMMAND.search(command)) is None:
        return
    verb, rest = found[1], found[2].partition(" -- ")[0].partition(" | ")[0]
    if verb not in VERBS:
        yield f"weft {verb}"
    elif verb != "run":
        yield from (f"weft {verb} {option}" for option in OPTION.findall(rest) if option not in _options(verb))


@pytest.mark.parametrize("path", [*PAGES, *SOURCES], ids=lambda path: str(path.relative_to(ROOT)))
def test_every_name_in_prose_exists(path: Path) -> None:
    every_option = frozenset(FOREIGN_OPTIONS).union(*map(_options, VERBS))
    unknown = []
    for word in _ticked(path):
        unknown += [option for option in OPTION.findall(word) if option not in every_option]
        unknown += _unknown_options(word)
        if word in EXAMPLES:
            continue
        if FILE.fullmatch(word):
            unknown += [] if _is_file(word, path) else [word]
        elif NAME.fullmatch(word) and LOOKS_LIKE_CODE.fullmatch(word) and not _is_name(word):
            unknown.append(word)
    assert not unknown


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_command_in_a_code_block_exists(path: Path) -> None:
    lines = [line for block in CODE_BLOCK.findall(path.read_text()) for line in block.splitlines()]
    assert not [name for line in lines for name in _unknown_options(line.partition("#")[0])]


def test_a_name_that_is_gone_is_found() -> None:
    assert _is_name("Client.submit")
    assert not _is_name("Client.no_such_method")
    assert not _is_name("no_such_function()")
    assert not _is_file("overlap/no_such_file.py", ROOT / "README.md")
    assert list(_unknown_options("weft status --polcy x -- --foreign")) == ["weft status --polcy"]
