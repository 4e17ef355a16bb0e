"""A route, a method, or a reason that its reference page does not name is one that nobody finds."""

from __future__ import annotations

import inspect
import re
from pathlib import Path

import pytest

from weft.client import Client
from weft.core import reason
from weft.core.status_rows import JobRow, NodeRow
from weft.daemon.api import dashboard, routes

DOCS = Path(__file__).parents[2] / "docs"
CLI = (DOCS / "cli.md").read_text()
CONTROLLER = (DOCS / "controller.md").read_text()
ROUTE = re.compile(r'@router\.(\w+)\("([^"]+)"')


def routes_of_the_api() -> set[str]:
    found = ROUTE.findall(inspect.getsource(routes) + inspect.getsource(dashboard))
    return {f"{method.upper()} {path.replace('{job_id}', '{id}')}" for method, path in found}


def test_every_route_of_the_api_is_on_the_page_of_the_controller() -> None:
    table = CONTROLLER[CONTROLLER.index("| route |") :]
    known = routes_of_the_api()
    assert len(known) > 20
    assert sorted(route for route in known if f"`{route}" not in table) == []


def test_every_method_of_the_client_is_on_the_page_of_the_controller() -> None:
    (listed,) = re.findall(r"`Client` has (.*?)\.\n", CONTROLLER, re.DOTALL)
    methods = {name for name in vars(Client) if not name.startswith("_") and inspect.isfunction(vars(Client)[name])}
    assert set(re.findall(r"`(\w+)`", listed)) == methods


def test_every_reason_a_user_can_see_is_on_the_page_of_commands() -> None:
    codes = [
        name for name, kind in vars(reason).items() if inspect.isclass(kind) and kind.__module__ == reason.__name__
    ]
    assert len(codes) > 20
    assert [code for code in codes if f"`{code}`" not in CLI] == []


@pytest.mark.parametrize(("command", "row"), [("weft status", JobRow), ("weft nodes --json", NodeRow)])
def test_every_field_of_the_json_is_on_the_page_of_commands(command: str, row: type) -> None:
    shown = CLI[CLI.index(f"`{command}", CLI.index("## weft status")) :].partition("\n\n")[0]
    assert [name for name in row.__annotations__ if not re.search(rf'[`"]{name}[`"]', shown)] == []
