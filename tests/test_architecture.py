"""The rules of the house (docs/design.md, "Rooms"), read from the source with ``ast`` and enforced.

Nothing is imported: a rule is broken by what a file says, on every platform and with every extra missing.
The second half of this file breaks each rule on purpose, so that a checker gone blind fails too.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "tickrate"

FLOORS = {
    **dict.fromkeys(["errors", "clock", "trees", "program"], 0),
    **dict.fromkeys(["realtime", "devices", "nn", "data", "wire", "tracking", "artefact"], 1),
    **dict.fromkeys(["games", "vector", "algorithms"], 2),
    **dict.fromkeys(["policy", "registry", "onnx"], 3),
    "runtime": 4,
    "config": 5,
    **dict.fromkeys(["cli", "tools"], 6),
    **dict.fromkeys(["api", "__main__"], 7),
}
"""Room (a package or a top-level file) to floor. ``testing`` and ``__init__`` have rules of their own."""

SIDEWAYS = {
    ("cli", "tools"),
    ("clock", "errors"),
    ("trees", "errors"),
    ("program", "errors"),
    ("__init__", "registry"),
}
"""Pairs (importer, imported) that are allowed besides: errors stand under everything, cli runs tools, and the
package finds by name, when it is asked for, what would load too much at import."""

TESTING_MAY_BE_IMPORTED_BY = {"testing", "tools", "cli"}
TORCH_FREE = {
    *("errors", "clock", "trees", "program", "realtime", "devices", "data", "wire", "tracking", "games"),
    *(
        "artefact",
        "policy",
        "registry",
        "onnx",
        "runtime",
        "config",
        "cli",
        "tools",
        "testing",
        "api",
        "__init__",
        "__main__",
    ),
}
"""Rooms that must not load torch, neither themselves nor through what they import."""

PICKLES = {"pickle", "cPickle", "_pickle", "dill", "cloudpickle", "marshal", "shelve", "joblib"}
POSIX_ONLY = {"fcntl", "termios", "resource", "pwd", "grp", "tty", "pty"}
MAY_IMPORT_BY_NAME = {"registry.py"}
"""Files that may turn a string into an import; everywhere else it would be a way round the floors."""
DEEP_INHERITANCE_ALLOWED = {"errors.py"}
"""The exception tree is a tree."""


class Source(NamedTuple):
    """One parsed file: path inside the package, dotted module name, room, tree with parent links."""

    file: str
    module: str
    room: str
    tree: ast.Module
    parents: dict[ast.AST, ast.AST]

    def ancestors(self, node: ast.AST) -> Iterator[ast.AST]:
        while node in self.parents:
            node = self.parents[node]
            yield node

    def at(self, node: ast.AST, text: str) -> str:
        return f"{self.file}:{getattr(node, 'lineno', 1)}: {text}"


class Import(NamedTuple):
    """One imported module; ``names`` are (name, local name) pairs of a ``from`` import."""

    node: ast.stmt
    module: str
    names: tuple[tuple[str, str], ...]


def read(package: Path) -> list[Source]:
    sources = []
    for path in sorted(package.rglob("*.py")):
        relative = path.relative_to(package)
        parts = [*relative.parts[:-1], relative.stem]
        room = parts[0]
        if parts[-1] == "__init__":
            parts.pop()
        tree = ast.parse(path.read_text(encoding="utf-8"), filename=str(path))
        parents = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        sources.append(Source(relative.as_posix(), ".".join(["tickrate", *parts]), room, tree, parents))
    return sources


def imports(source: Source) -> Iterator[Import]:
    """Yield every import of a file, relative ones resolved, wherever it stands."""
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(node, alias.name, ())
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                here = source.module.split(".")
                drop = node.level - 1 if source.file.endswith("__init__.py") else node.level
                base = ".".join([*here[: len(here) - drop], *([node.module] if node.module else [])])
            yield Import(node, base, tuple((a.name, a.asname or a.name) for a in node.names))


def targets(found: Import) -> list[str]:
    """Return the dotted names an import may mean: ``from tickrate import data`` means ``tickrate.data``."""
    return [f"{found.module}.{name}" for name, _ in found.names] if found.names else [found.module]


def rooms_of(found: Import) -> set[str]:
    """Return the rooms of this package that an import names."""
    rooms = set()
    for target in targets(found):
        head, *rest = target.split(".")
        if head == "tickrate" and rest and rest[0] != "__version__":
            rooms.add(rest[0])
    return rooms


def check_floors(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        known = source.room in FLOORS or source.room in {"testing", "__init__"}
        if not known:
            yield f"{source.file}:1: the room {source.room!r} stands on no floor: name it in FLOORS"
            continue
        for found in imports(source):
            for room in rooms_of(found) - {source.room}:
                if message := _floor_breach(source.room, room):
                    yield source.at(found.node, message)


def _floor_breach(importer: str, imported: str) -> str | None:
    if imported == "testing":
        return None if importer in TESTING_MAY_BE_IMPORTED_BY else f"{importer} imports testing"
    if imported not in FLOORS:
        return f"{importer} imports the unknown room {imported!r}"
    if (importer, imported) in SIDEWAYS:
        return None
    # The package's own __init__ must stay light; the public test helpers may know all but the commands.
    own = {"__init__": 2, "testing": 6}.get(importer, FLOORS.get(importer, 0))
    if FLOORS[imported] < own:
        return None
    return f"{importer} (floor {own}) imports {imported} (floor {FLOORS[imported]})"


def check_imports_at_top(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        for found in imports(source):
            if any(
                isinstance(a, ast.FunctionDef | ast.AsyncFunctionDef) for a in source.ancestors(found.node)
            ):
                yield source.at(found.node, f"import of {found.module} inside a function")


def check_no_import_by_name(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        if source.file in MAY_IMPORT_BY_NAME:
            continue
        for node in ast.walk(source.tree):
            name = _dotted(node.func) if isinstance(node, ast.Call) else None
            if name and name.split(".")[-1] in {"import_module", "__import__"}:
                yield source.at(node, f"{name}() is a way round the floors; go through registry.py")


def check_torch_free(sources: list[Source]) -> Iterator[str]:
    """Follow the imports, packages' ``__init__`` files included, from each torch-free file to torch."""
    by_module = {s.module: s for s in sources}
    edges: dict[str, set[str]] = {}
    for source in sources:
        edges[source.module] = set()
        for found in imports(source):
            for target in [found.module, *targets(found)]:
                if target.split(".")[0] == "torch":
                    edges[source.module].add("torch")
                parts = target.split(".")
                prefixes = {".".join(parts[:i]) for i in range(1, len(parts) + 1)}
                edges[source.module] |= prefixes & by_module.keys() - {source.module}
    for source in sources:
        if source.room in TORCH_FREE and (path := _path_to_torch(source.module, edges)):
            yield f"{source.file}:1: loads torch: {' -> '.join(path)}"


def _path_to_torch(start: str, edges: dict[str, set[str]]) -> list[str] | None:
    came_from: dict[str, str | None] = {start: None}
    queue = [start]
    for module in queue:
        if module == "torch":
            path = [module]
            while (before := came_from[path[0]]) is not None:
                path.insert(0, before)
            return path
        for following in sorted(edges.get(module, ())):
            if following not in came_from:
                came_from[following] = module
                queue.append(following)
    return None


def check_time_in_clock_only(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        for found in imports(source):
            if found.module == "time" and source.file != "clock.py":
                yield source.at(found.node, "imports time; only clock.py may, use tickrate.clock")


def check_no_pickle(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        for found in imports(source):
            root = found.module.split(".")[0]
            if root in PICKLES:
                yield source.at(found.node, f"imports {root}: bytes are never unpickled")
            ships_objects = root == "multiprocessing" and not _only_shared_memory(found)
            if ships_objects:
                yield source.at(
                    found.node, "multiprocessing ships pickled objects; start `python -m tickrate ...`"
                )
        for node in ast.walk(source.tree):
            if isinstance(node, ast.Call):
                yield from (source.at(node, text) for text in _unsafe_load(node))


def _only_shared_memory(found: Import) -> bool:
    allowed = {"multiprocessing.shared_memory", "multiprocessing.resource_tracker"}
    return found.module in allowed or set(targets(found)) <= allowed


def _unsafe_load(call: ast.Call) -> Iterator[str]:
    keywords = {k.arg: k.value for k in call.keywords}
    allow = keywords.get("allow_pickle")
    if allow is not None and not (isinstance(allow, ast.Constant) and allow.value is False):
        yield "allow_pickle: bytes are never unpickled"
    if _dotted(call.func) == "torch.load":
        only = keywords.get("weights_only")
        if not (isinstance(only, ast.Constant) and only.value is True):
            yield "torch.load without weights_only=True"


def _dotted(node: ast.expr) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute) and (base := _dotted(node.value)):
        return f"{base}.{node.attr}"
    return None


def check_docstrings(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        if not (ast.get_docstring(source.tree) or "").strip():
            yield f"{source.file}:1: no module docstring that says its one reason to exist"


def check_posix_guarded(sources: list[Source]) -> Iterator[str]:
    for source in sources:
        for found in imports(source):
            root = found.module.split(".")[0]
            if root in POSIX_ONLY and not any(_is_guard(a) for a in source.ancestors(found.node)):
                yield source.at(
                    found.node, f"{root} exists on POSIX only; guard it with sys.platform or try/except"
                )


def _is_guard(node: ast.AST) -> bool:
    if isinstance(node, ast.If):
        return any(
            _dotted(n) in {"sys.platform", "os.name"} for n in ast.walk(node.test) if isinstance(n, ast.expr)
        )
    if isinstance(node, ast.Try):
        caught = {
            _dotted(n) for h in node.handlers if h.type for n in ast.walk(h.type) if isinstance(n, ast.expr)
        }
        return bool(caught & {"ImportError", "ModuleNotFoundError"})
    return False


def check_shallow_inheritance(sources: list[Source]) -> Iterator[str]:
    """A class may derive from one class of the package that derives from no other class of the package."""
    bases: dict[str, list[str]] = {}
    where: dict[str, tuple[Source, ast.ClassDef]] = {}
    aliases: dict[str, str] = {}  # "module.local_name" -> "defining_module.name", also for re-exports
    for source in sources:
        for found in imports(source):
            for name, local in found.names:
                aliases[f"{source.module}.{local}"] = f"{found.module}.{name}"
    for source in sources:
        for node in (n for n in ast.walk(source.tree) if isinstance(n, ast.ClassDef)):
            name = f"{source.module}.{node.name}"
            where[name] = source, node
            heads = [b.value if isinstance(b, ast.Subscript) else b for b in node.bases]
            bases[name] = [f"{source.module}.{dotted}" for b in heads if (dotted := _dotted(b))]

    def resolve(name: str) -> str | None:
        for _ in range(10):
            if name in where:
                return name
            head, _, last = name.rpartition(".")
            if name in aliases:
                name = aliases[name]
            elif head in aliases:
                name = f"{aliases[head]}.{last}"
            else:
                return None
        return None

    for name, (source, node) in where.items():
        for base in filter(None, map(resolve, bases[name])):
            above = [b for b in map(resolve, bases[base]) if b]
            if above and source.file not in DEEP_INHERITANCE_ALLOWED:
                yield source.at(node, f"{node.name} derives from {base}, which derives from {above[0]}")


RULES: list[Callable[[list[Source]], Iterator[str]]] = [
    check_floors,
    check_imports_at_top,
    check_no_import_by_name,
    check_torch_free,
    check_time_in_clock_only,
    check_no_pickle,
    check_docstrings,
    check_posix_guarded,
    check_shallow_inheritance,
]


@pytest.fixture(scope="module")
def house() -> list[Source]:
    sources = read(PACKAGE)
    assert len(sources) > 5, f"found {len(sources)} files in {PACKAGE}: reading the wrong folder?"
    return sources


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__.removeprefix("check_"))
def test_the_house_keeps_its_rules(rule, house):
    breaches = list(rule(house))
    assert not breaches, "\n" + "\n".join(breaches)


# --- The checker must be able to fail: each rule broken on purpose, and its nearest allowed neighbour. ---

DOC = '"""Doc."""\n'


def breaches(
    tmp_path: Path, rule: Callable[[list[Source]], Iterator[str]], files: dict[str, str]
) -> list[str]:
    for name, text in files.items():
        path = tmp_path / "tickrate" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(DOC + text, encoding="utf-8")
    return list(rule(read(tmp_path / "tickrate")))


BAD = [
    (check_floors, {"wire/a.py": "from tickrate.data import records"}, "wire (floor 1) imports data"),
    (check_floors, {"wire/a.py": "import tickrate.runtime.worker as w"}, "imports runtime (floor 4)"),
    (check_floors, {"wire/a.py": "from tickrate import data"}, "imports data"),
    (check_floors, {"wire/a.py": "from ..data import records"}, "imports data"),
    (check_floors, {"wire/__init__.py": "from .. import data"}, "imports data"),
    (check_floors, {"trees.py": "from tickrate import clock"}, "imports clock"),
    (check_floors, {"games/car/a.py": "def f():\n    from tickrate.policy import Policy"}, "imports policy"),
    (check_floors, {"tools/a.py": "import tickrate.cli"}, "imports cli"),
    (check_floors, {"runtime/a.py": "from tickrate.testing import FakeClock"}, "imports testing"),
    (check_floors, {"testing/a.py": "import tickrate.cli.main"}, "imports cli"),
    (check_floors, {"__init__.py": "from tickrate import policy"}, "imports policy"),
    (check_floors, {"attic/a.py": ""}, "'attic' stands on no floor"),
    (check_floors, {"wire/a.py": "import tickrate.attic"}, "unknown room 'attic'"),
    (
        check_imports_at_top,
        {"a.py": "class A:\n    def f(self):\n        import numpy"},
        "a.py:4: import of numpy",
    ),
    (
        check_imports_at_top,
        {"a.py": "async def f():\n    if 1:\n        from os import path"},
        "import of os",
    ),
    (
        check_no_import_by_name,
        {"wire/a.py": "import importlib\nimportlib.import_module('x')"},
        "import_module()",
    ),
    (check_no_import_by_name, {"wire/a.py": "__import__('torch')"}, "__import__()"),
    (check_torch_free, {"data/a.py": "import torch.nn as nn"}, "tickrate.data.a -> torch"),
    (check_torch_free, {"data/a.py": "from torch import Tensor"}, "tickrate.data.a -> torch"),
    (
        check_torch_free,
        {"nn/__init__.py": "", "nn/mlp.py": "import torch", "games/a.py": "from tickrate.nn import mlp"},
        "tickrate.games.a -> tickrate.nn.mlp -> torch",
    ),
    (
        check_torch_free,
        {
            "algorithms/__init__.py": "import torch",
            "algorithms/c.py": "",
            "config/a.py": "import tickrate.algorithms.c",
        },
        "tickrate.config.a -> tickrate.algorithms -> torch",
    ),
    (check_time_in_clock_only, {"wire/a.py": "import time"}, "imports time"),
    (check_time_in_clock_only, {"wire/clock.py": "from time import sleep"}, "imports time"),
    (check_no_pickle, {"wire/a.py": "import pickle"}, "imports pickle"),
    (check_no_pickle, {"wire/a.py": "from multiprocessing import Queue"}, "multiprocessing"),
    (check_no_pickle, {"nn/a.py": "import torch\ntorch.load('x')"}, "weights_only"),
    (check_no_pickle, {"nn/a.py": "import torch\ntorch.load('x', weights_only=False)"}, "weights_only"),
    (check_no_pickle, {"data/a.py": "import numpy as np\nnp.load('x', allow_pickle=True)"}, "allow_pickle"),
    (check_posix_guarded, {"cli/a.py": "import termios"}, "termios exists on POSIX only"),
    (check_posix_guarded, {"cli/a.py": "try:\n    import tty\nexcept OSError:\n    pass"}, "tty"),
    (
        check_shallow_inheritance,
        {
            "nn/a.py": "class A: ...",
            "nn/b.py": "from tickrate.nn import a\nclass B(a.A): ...\nclass C(B): ...",
        },
        "C derives from tickrate.nn.b.B, which derives from tickrate.nn.a.A",
    ),
    (
        check_shallow_inheritance,
        {
            "nn/a.py": "from typing import Generic\nclass A(Generic): ...\nclass B(A[int]): ...",
            "nn/__init__.py": "from tickrate.nn.a import B as Net",
            "games/c.py": "from tickrate.nn import Net\nclass C(Net): ...",
        },
        "C derives from tickrate.nn.a.B",
    ),
]

GOOD = [
    (
        check_floors,
        {"wire/a.py": "from tickrate.errors import WireError\nfrom tickrate import __version__, clock"},
    ),
    (
        check_floors,
        {"wire/a.py": "from . import b\nfrom .b import c\nimport tickrate.wire.b", "wire/b.py": ""},
    ),
    (check_floors, {"cli/a.py": "import tickrate.tools.check", "tools/check.py": "import tickrate.testing"}),
    (
        check_floors,
        {"testing/a.py": "from tickrate.realtime import RealTimeEnv", "__main__.py": "import tickrate.cli"},
    ),
    (check_imports_at_top, {"a.py": "import sys\nif sys.platform == 'win32':\n    import winreg"}),
    (check_no_import_by_name, {"registry.py": "import importlib\nimportlib.import_module('x')"}),
    (check_torch_free, {"nn/a.py": "import torch", "data/a.py": "import torchless\nimport tickrate.data.b"}),
    (check_time_in_clock_only, {"clock.py": "import time", "wire/a.py": "import timeit_like"}),
    (check_no_pickle, {"nn/a.py": "import torch\ntorch.load('x', weights_only=True)"}),
    (check_no_pickle, {"runtime/a.py": "from multiprocessing import shared_memory"}),
    (check_posix_guarded, {"cli/a.py": "import sys\nif sys.platform != 'win32':\n    import termios"}),
    (check_posix_guarded, {"cli/a.py": "try:\n    import fcntl\nexcept ImportError:\n    fcntl = None"}),
    (check_shallow_inheritance, {"nn/a.py": "import torch\nclass A(torch.nn.Module): ...\nclass B(A): ..."}),
    (check_shallow_inheritance, {"errors.py": "class A(Exception): ...\nclass B(A): ...\nclass C(B): ..."}),
]


@pytest.mark.parametrize(("rule", "files", "message"), BAD)
def test_each_rule_sees_a_breach(tmp_path, rule, files, message):
    found = breaches(tmp_path, rule, files)
    assert any(message in text for text in found), found


@pytest.mark.parametrize(("rule", "files"), GOOD)
def test_each_rule_lets_the_allowed_pass(tmp_path, rule, files):
    assert breaches(tmp_path, rule, files) == []


def test_a_file_without_docstring_is_seen(tmp_path):
    (tmp_path / "tickrate").mkdir()
    (tmp_path / "tickrate" / "a.py").write_text("x = 1\n", encoding="utf-8")
    assert list(check_docstrings(read(tmp_path / "tickrate"))) == [
        "a.py:1: no module docstring that says its one reason to exist"
    ]
