"""Executes a notebook in place: its outputs are kept, its paths are not."""

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient

path = Path(sys.argv[1])
notebook = nbformat.read(path, as_version=4)
NotebookClient(notebook, timeout=300, kernel_name="python3").execute()
# When a cell ran is of no interest, and changes each time.
for cell in notebook.cells:
    cell.metadata.pop("execution", None)
nbformat.write(notebook, path)
