"""Make the page and the figure of every result again from its JSON file: ``python -m benchmarks.redraw [NAME ...]``.

The tables in README and docs are written as well.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from benchmarks.docs_tables import fill_all
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
    for page in fill_all(folder):
        print(f"{page}: tables")


if __name__ == "__main__":
    main(sys.argv[1:])
