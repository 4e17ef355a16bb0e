"""``python -m weft.daemon HOME ...``: what `weft up` starts in the background."""

from weft.daemon.server import main

if __name__ == "__main__":
    raise SystemExit(main())
