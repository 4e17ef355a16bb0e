"""A real controller on simulated nodes: ``python -m benchmarks.scale_controller NODES DEVICES COUNTS_FILE``.

The engine, the loop, the journal and the API are the product's; only the bridge is :mod:`benchmarks.simulated_nodes`.
"""

from __future__ import annotations

import sys
from functools import partial

import weft.engines.ray
from weft.daemon import controller_process
from weft.daemon.home import Home, default_home
from weft.daemon.options import ControllerOptions


def main() -> None:
    nodes = (sys.executable, "-P", "-m", "benchmarks.simulated_nodes", *sys.argv[1:])
    weft.engines.ray.RayEngine = partial(weft.engines.ray.RayEngine, launcher=nodes)  # type: ignore[misc, assignment]
    options = ControllerOptions(engine="ray", insecure_ray=True, port=0)
    sys.exit(controller_process.serve(Home(default_home()), options))


if __name__ == "__main__":
    main()
