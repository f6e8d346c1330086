"""What holds for every text: it gives a Reading, and one wrong value gives a fault at its place."""

import json

from hypothesis import given, settings
from hypothesis import strategies as st

from partrain.spec.forms import fits, forms_at, key_paths
from partrain.spec.job import JobSpec
from partrain.spec.load import Reading, read_job_text
from partrain.spec.values import plain
from partrain.spec.values import read as read_values
from partrain.spec.words import allowed_at, nearest

BOUNDED = settings(max_examples=60, deadline=None)

LINES = {
    "name": "demo",
    "model.preset": "tiny",
    "data.train": "builtin:python-source",
    "training.sequence_length": "128",
    "training.global_batch_size": "32",
    "training.steps": "120",
    "training.micro_batch_size": "4",
    "training.precision": "fp32",
    "training.recompute": "selective",
    "training.seed": "7",
    "parallel.dp": "2",
    "parallel.tp": "auto",
    "parallel.sequence_parallel": "true",
    "parallel.zero": "1",
    "hardware.nodes": "1",
    "launch.backend": "local",
    "monitor.log_every": "5",
}
"""A good job, one key path a value."""
REQUIRED = ("name", "data.train", "training.sequence_length", "training.global_batch_size", "training.steps")
NUMBERS = (
    "sequence_length",
    "global_batch_size",
    "steps",
    "micro_batch_size",
    "dp",
    "tp",
    "nodes",
    "log_every",
)


def read(text: str | bytes) -> Reading:
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    return read_job_text(data, source="job.yaml", environ={"STEPS": "5"})


def written(values: dict[str, str]) -> str:
    """The job with `values`, each key on a line of its own."""
    lines, section = ["version: 1"], ""
    for path in sorted(values, key=lambda path: path.partition(".")[0] if "." in path else ""):
        parent, dot, key = path.rpartition(".")
        if dot and parent != section:
            section = parent
            lines.append(f"{parent}:")
        lines.append(f"{'  ' if dot else ''}{key}: {values[path]}")
    lines += [] if any(path.startswith("model.") for path in values) else ["model: {preset: tiny}"]
    return "\n".join(lines) + "\n"


def line_of(text: str, path: str) -> int:
    section, dot, key = path.rpartition(".")
    lines = text.splitlines()
    start = lines.index(f"{section}:") if dot else -1
    indent = "  " if dot else ""
    return next(n for n in range(start + 1, len(lines)) if lines[n].startswith(f"{indent}{key}: ")) + 1


subsets = st.sets(st.sampled_from([path for path in LINES if path not in REQUIRED])).map(
    lambda chosen: {path: value for path, value in LINES.items() if path in chosen or path in REQUIRED}
)


@BOUNDED
@given(st.one_of(st.binary(max_size=200), st.text(max_size=200)))
def test_any_bytes_give_a_reading(data: str | bytes) -> None:
    reading = read(data)
    assert reading.faults
    assert all(str(fault) for fault in reading.faults)


@BOUNDED
@given(
    st.lists(
        st.sampled_from(
            [*"{}[],:-?&*!|>'\"%@`#\n \t$", "a", "1", "${", "}", "<<", "---", "name: ", "version: 1\n"]
        ),
        max_size=40,
    )
)
def test_any_heap_of_yaml_signs_gives_a_reading(signs: list[str]) -> None:
    assert read("".join(signs)).faults


@BOUNDED
@given(
    st.recursive(
        st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=5)),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from([".".join(path) for path in key_paths()] + ["training", "1", "x"]),
                inner,
                max_size=4,
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_gives_a_reading(value: object) -> None:
    reading = read(json.dumps(value))
    assert reading.faults


@BOUNDED
@given(st.text(max_size=60))
def test_any_option_gives_a_reading(option: str) -> None:
    reading = read_job_text(written(LINES).encode(), source="job.yaml", overrides=[option], environ={})
    assert reading.faults


@BOUNDED
@given(subsets)
def test_every_part_of_a_good_job_is_good_and_read_as_it_stands(values: dict[str, str]) -> None:
    reading = read(written(values))
    assert reading.faults == ()
    assert reading.job is not None
    for path in values:
        held: object = reading.job
        for key in path.split("."):
            held = getattr(held, key)
        assert str(held).lower() == values[path]
    assert read_values(JobSpec, json.loads(json.dumps(plain(reading.job)))) == reading.job


@BOUNDED
@given(
    subsets, st.data(), st.sampled_from(["[1]", "{a: 1}", "~", "&a x", "*a", "!!str x", "${NONE}", '"\\e"'])
)
def test_one_wrong_value_is_a_fault_at_its_line(
    values: dict[str, str], data: st.DataObject, wrong: str
) -> None:
    path = data.draw(st.sampled_from(sorted(values)))
    text = written({**values, path: wrong})
    places = [fault.place for fault in read(text).faults]
    assert line_of(text, path) in [place.line for place in places if place]
    assert {path} == {fault.path for fault in read(text).faults}


@BOUNDED
@given(subsets, st.data(), st.sampled_from(["0", "-3", "2.5", '"4"', "1_000", "many", "true", "1e2"]))
def test_one_wrong_count_is_a_fault_with_a_fix_that_is_right(
    values: dict[str, str], data: st.DataObject, wrong: str
) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in values if path.rpartition(".")[2] in NUMBERS)))
    text = written({**values, path: wrong})
    (fault,) = read(text).faults
    assert fault.place is not None
    assert (fault.path, fault.place.line) == (path, line_of(text, path))
    fixed = fault.fix.removesuffix(" (without quotes)").partition(": ")[2]
    assert bool(fixed) == (wrong not in ("many", "true"))
    assert not fixed or read(written({**values, path: fixed})).faults == ()


@BOUNDED
@given(subsets, st.data())
def test_one_misspelt_key_is_one_fault_that_names_the_right_one(
    values: dict[str, str], data: st.DataObject
) -> None:
    path = data.draw(st.sampled_from(sorted(path for path in values if len(path.rpartition(".")[2]) > 4)))
    section, dot, key = path.rpartition(".")
    swapped = key[:2] + key[3] + key[2] + key[4:]
    text = written(
        {**{p: v for p, v in values.items() if p != path}, f"{section}{dot}{swapped}": values[path]}
    )
    if swapped != key:
        (fault,) = read(text).faults
        assert (fault.path, fault.fix) == (f"{section}{dot}{swapped}", f"did you mean `{key}`?")


def test_every_key_has_words_for_what_it_may_hold() -> None:
    assert {path: allowed_at(path) for path in key_paths() if not allowed_at(path)} == {}


@BOUNDED
@given(st.sampled_from(key_paths()), st.one_of(st.integers(-100, 100), st.floats(-5, 5), st.booleans()))
def test_the_nearest_value_is_allowed(path: tuple[str, ...], value: object) -> None:
    forms = forms_at(path)
    near = nearest(forms, value)
    read_back = read(f"monitor: {{log_every: {near}}}\n") if near else None
    assert read_back is None or near.startswith('"') or any(fits(form, json.loads(near)) for form in forms)
