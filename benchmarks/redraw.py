"""Make the page and the figure of every result again from its JSON file: ``python -m benchmarks.redraw [NAME ...]``."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.parts import PARTS
from benchmarks.record import read_document, results_folder, write_whole


def main(names: Sequence[str]) -> None:
    folder = results_folder(None)
    for name in names or PARTS:
        path = folder / f"{name}.json"
        if path.exists():
            document = read_document(path)
            write_whole(path.with_suffix(".md"), PARTS[name].page(document))
            PARTS[name].draw(document, path.with_suffix(".png"))
            print(f"{path.with_suffix('.md')}, {path.with_suffix('.png').name}")


if __name__ == "__main__":
    main(sys.argv[1:])
