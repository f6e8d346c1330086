"""The conventions that a machine can hold: sizes, names, and who may import or print what."""

import ast
import re
import statistics
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "partrain"
CODE = sorted(path for path in PACKAGE.rglob("*.py") if path.stat().st_size)
TESTS_AND_BENCH = sorted(path for folder in ("tests", "bench") for path in (ROOT / folder).rglob("*.py"))

FILE_LINES, FILE_LINES_MEDIAN = 400, 150
FUNCTION_LINES, FUNCTION_LINES_ENGINE, FUNCTION_LINES_MEDIAN = 60, 80, 12
PARAMETERS, NESTING = 6, 3
EMPTY_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "manager"}

# room or file -> the third parties it may import; a file's own line counts before its room's
THIRD_PARTIES = {
    "errors.py": set(),
    "units.py": set(),
    "spec": set(),
    "spec/catalog.py": {"yaml"},
    "spec/edit.py": {"yaml"},
    "spec/syntax.py": {"yaml"},
    "spec/tree.py": {"yaml"},
    "model": set(),
    "layout": set(),
    "cost": set(),
    "plan": set(),
    "run": set(),
    "checkpoint": set(),
    "data": {"numpy"},
    "data/facts.py": set(),
    "data/faults.py": set(),
    "data/order.py": set(),
    "data/python_source.py": set(),
    "data/text.py": set(),
    "data/token_file.py": set(),
    "data/token_header.py": set(),
    "launch": set(),
    "engine": {"torch", "deepspeed", "tensorboard", "numpy", "safetensors"},
    "engine/optimizer.py": {"torch", "bitsandbytes"},
    "monitor": set(),
    "cli": {"typer"},
    "cli/console.py": {"rich"},
    "cli/render.py": {"rich"},
    "__main__.py": set(),
}


def name_of(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for path in CODE:
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def num_lines(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def num_parameters(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    found = function.args
    names = [argument.arg for argument in found.posonlyargs + found.args + found.kwonlyargs]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def nesting(node: ast.AST, depth: int = 0) -> int:
    """Deepest block in a function; an `elif` is no deeper than its `if`, an inner function starts anew."""
    deepest = depth
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.Lambda):
            continue
        is_block = isinstance(child, ast.If | ast.For | ast.While | ast.Try | ast.With | ast.Match)
        is_elif = isinstance(node, ast.If) and isinstance(child, ast.If) and node.orelse == [child]
        deepest = max(deepest, nesting(child, depth + (is_block and not is_elif)))
    return deepest


def test_files_stay_short() -> None:
    lengths = {name_of(path): path.read_text(encoding="utf-8").count("\n") for path in CODE}
    assert {name: length for name, length in lengths.items() if length > FILE_LINES} == {}
    assert statistics.median(lengths.values()) <= FILE_LINES_MEDIAN


def test_functions_stay_short() -> None:
    lengths = {f"{name_of(path)}:{node.name}:{node.lineno}": num_lines(node) for path, node in functions()}
    too_long = {
        name: length
        for name, length in lengths.items()
        if length > (FUNCTION_LINES_ENGINE if name.startswith("engine/") else FUNCTION_LINES)
    }
    assert too_long == {}
    assert statistics.median(lengths.values()) <= FUNCTION_LINES_MEDIAN


def test_functions_take_few_parameters() -> None:
    counts = {
        f"{name_of(path)}:{node.name}:{node.lineno}": num_parameters(node) for path, node in functions()
    }
    # a command's parameters are its options
    assert {
        name: count for name, count in counts.items() if count > PARAMETERS and not name.startswith("cli/")
    } == {}


def test_blocks_are_not_nested_deeply() -> None:
    depths = {f"{name_of(path)}:{node.name}:{node.lineno}": nesting(node) for path, node in functions()}
    assert {name: depth for name, depth in depths.items() if depth > NESTING} == {}


def test_no_file_has_an_empty_name() -> None:
    parts = {part for path in CODE + TESTS_AND_BENCH for part in path.relative_to(ROOT).with_suffix("").parts}
    assert parts & EMPTY_NAMES == set()


def test_only_render_prints() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in CODE
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "print"
    ]
    assert [place for place in found if not place.startswith("cli/render.py")] == []


def test_rooms_have_empty_init_files() -> None:
    assert [path for path in PACKAGE.rglob("*/__init__.py") if path.stat().st_size] == []


def catches_everything(handler: ast.ExceptHandler) -> bool:
    """Whether any error stops here; one that cleans up and raises it again does not."""
    caught = handler.type.elts if isinstance(handler.type, ast.Tuple) else [handler.type]
    is_wide = any(kind is None or ast.unparse(kind) in ("Exception", "BaseException") for kind in caught)
    last = handler.body[-1]
    return is_wide and not (isinstance(last, ast.Raise) and last.exc is None)


def test_errors_are_caught_narrowly() -> None:
    found = [
        f"{name_of(path)}:{node.lineno}"
        for path in CODE
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.ExceptHandler) and catches_everything(node)
    ]
    assert [place for place in found if not place.startswith("engine/worker.py")] == []


def test_nothing_is_left_to_be_done_in_comments() -> None:
    marks = re.compile(r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "XX" + "X"]) + r")\b")
    found = [path for path in CODE + TESTS_AND_BENCH if marks.search(path.read_text(encoding="utf-8"))]
    assert found == []


def imported_by(path: Path) -> set[str]:
    """Top-level packages that a file imports, those inside functions too."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            found.add(node.module.split(".")[0])
    return found


@pytest.mark.parametrize("path", CODE, ids=name_of)
def test_rooms_import_only_their_third_parties(path: Path) -> None:
    name = name_of(path)
    if name == "__init__.py":
        return
    room = name.split("/")[0]
    allowed = THIRD_PARTIES[name] if name in THIRD_PARTIES else THIRD_PARTIES[room]
    assert imported_by(path) - set(sys.stdlib_module_names) - {"partrain"} <= allowed
