"""The controller's folder: private, one controller at a time, clear about what is wrong."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from weft.client import Client
from weft.daemon.clock import SteadyClock
from weft.daemon.home import Home, HomeError, HomeTakenError, Record
from weft.daemon.ids import is_id, new_id
from weft.daemon.listeners import PortTakenError, Reserve, listen_local, listen_unix
from weft.errors import NoControllerError


def test_home_is_private(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.prepare()
    home.token()
    assert home.root.stat().st_mode & 0o777 == 0o700
    assert home.sockets.stat().st_mode & 0o777 == 0o700
    assert home.token_file.stat().st_mode & 0o777 == 0o600


def test_token_stays_the_same(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.token() == home.token()
    assert len(home.token()) >= 40
    assert [path.name for path in tmp_path.iterdir()] == ["token"]


def test_token_that_others_could_read_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.token()
    home.token_file.chmod(0o644)
    with pytest.raises(HomeError, match="delete the file"):
        home.token()


def test_open_folder_is_refused(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    home.root.mkdir()
    home.root.chmod(0o755)
    with pytest.raises(HomeError, match="chmod 700"):
        home.prepare()


def test_a_second_controller_reports_the_pid_of_the_first(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.holder() is None
    with home.locked():
        assert home.holder() == os.getpid()
        with pytest.raises(HomeTakenError, match=f"process {os.getpid()}.*weft down"), home.locked():
            pass
    assert home.holder() is None


def test_a_record_is_read_back_and_garbage_is_none(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert home.read_record() is None
    record = Record(pid=7, started_s=1.5, socket="/x", port=80, version="1")
    home.write_record(record)
    assert home.read_record() == record
    home.record_file.write_text('{"pid": ')
    assert home.read_record() is None


def test_deep_home_still_has_sockets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runtime = tmp_path / "r"
    runtime.mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(runtime))
    home = Home(tmp_path / ("deep" * 30))
    home.prepare()
    assert home.sockets.parent == runtime
    with Reserve() as reserve:
        listen_unix(home.api_socket, reserve).close()


def test_a_deep_home_is_found_in_any_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Running workers report to the path they were given: a restarted controller must listen there."""
    for name in ("r", "other"):
        (tmp_path / name).mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "r"))
    home = Home(tmp_path / ("deep" * 30))
    home.prepare()
    place = home.sockets
    for other in (str(tmp_path / "other"), None):
        if other is None:
            monkeypatch.delenv("XDG_RUNTIME_DIR")
        else:
            monkeypatch.setenv("XDG_RUNTIME_DIR", other)
        home.prepare()
        assert home.sockets == place
    # After a reboot the path is gone: there is a new one.
    place.rmdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "other"))
    home.prepare()
    assert home.sockets.parent == tmp_path / "other"
    assert home.sockets.stat().st_mode & 0o777 == 0o700


def test_a_deep_home_without_a_controller_says_so(tmp_path: Path) -> None:
    with pytest.raises(NoControllerError, match="no controller is running"):
        Client(deep_home_with_a_token(tmp_path)).jobs()


def deep_home_with_a_token(folder: Path) -> Path:
    root = folder / ("deep" * 30)
    root.mkdir(mode=0o700)
    Home(root).token()
    return root


def test_only_the_owner_may_use_the_api_socket(tmp_path: Path) -> None:
    with Reserve() as reserve, listen_unix(tmp_path / "s", reserve):
        assert (tmp_path / "s").stat().st_mode & 0o777 == 0o600


def test_a_port_in_use_is_reported_with_a_remedy() -> None:
    with Reserve() as reserve, listen_local(0, reserve) as first:
        port = first.getsockname()[1]
        with pytest.raises(PortTakenError, match=rf"port {port} .*--port"):
            listen_local(port, reserve)


def test_a_clock_set_back_an_hour_does_not_run_backward() -> None:
    wall, steady = 10_000.0, 50.0
    clock = SteadyClock(0.0, lambda: wall, lambda: steady)
    before_s = clock.now_s()
    wall, steady = wall - 3600.0, steady + 5.0
    assert clock.now_s() == before_s + 5.0
    assert SteadyClock(before_s, lambda: wall, lambda: steady).now_s() >= before_s


def test_ids_are_safe_as_names() -> None:
    made = new_id(())
    assert is_id(made)
    assert made[0].isalpha()
    assert made.isalnum()
    for text in ("", "..", "a/b", made + "/", made.upper(), made + "\n"):
        assert not is_id(text)
