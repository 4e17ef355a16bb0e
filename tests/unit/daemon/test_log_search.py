"""Whoever looks for an error in a long log gets the lines, and not a controller that runs out of memory."""

from __future__ import annotations

from api_caller import ask, own_headers
from fake_controller import TOKEN, FakeController
from weft.daemon.api.app import make_app
from weft.daemon.log_search import MAX_FOUND_LINES, MAX_LINE_BYTES


def test_the_lines_that_contain_a_text_are_found_and_bounded() -> None:
    controller = FakeController()
    job = controller.add(attempt=1)
    lines = [b"step %d" % number for number in range(5000)] + [b"x" * 10_000 + b" ERROR", b"an error at the end"]
    controller.output[job.id, 1, "out"] = b"\n".join(lines)
    app = make_app(controller, TOKEN, port=8477)
    path = f"/v1/jobs/{job.id}/logs?search="
    found = ask(app, "GET", path + "Error", own_headers())
    assert found.body == b"x" * MAX_LINE_BYTES + b"\nan error at the end\n"
    assert (found.headers["x-weft-matches"], found.headers["x-weft-attempt"]) == ("2", "1")
    many = ask(app, "GET", path + "step%20", own_headers())
    assert many.headers["x-weft-matches"] == "5000"
    assert many.body.count(b"\n") == MAX_FOUND_LINES
    assert many.body.endswith(b"step 4999\n")
    assert ask(app, "GET", path + "nothing", own_headers()).body == b""
    assert ask(app, "GET", path, own_headers()).status == 422
    assert ask(app, "GET", path + "a" * 201, own_headers()).status == 422
