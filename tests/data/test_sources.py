"""Samples and batches, and what happens when the data is not what it was said to be."""

import os
import sysconfig
from pathlib import Path

import pytest

from partrain.data import python_source
from partrain.data.facts import find_facts
from partrain.data.order import sample_index
from partrain.errors import DataError
from partrain.layout.layout import Layout
from partrain.spec.facts import DatasetFacts

np = pytest.importorskip("numpy")
sources = pytest.importorskip("partrain.data.sources")
tokens = pytest.importorskip("partrain.data.tokens")


def write_tokens(folder: Path, values: list[int], *, dtype: str = "uint16", vocab_size: int = 1000) -> Path:
    path = folder / "corpus.bin"
    np.array(values, np.dtype(dtype).newbyteorder("<")).tofile(path)
    path.with_suffix(".json").write_text(
        f'{{"format": "partrain-tokens", "version": 1, "dtype": "{dtype}", '
        f'"num_tokens": {len(values)}, "vocab_size": {vocab_size}}}'
    )
    return path


def open_tokens(path: Path, *, sequence_length: int = 4):
    return sources.open_source(
        find_facts(str(path)), sequence_length=sequence_length, vocab_size=1000, seed=1
    )


def layout(*, dp: int, micro_batch_size: int, num_micro_batches: int) -> Layout:
    return Layout(dp, 1, 1, 1, False, micro_batch_size, num_micro_batches, "none", (0, 3))


def global_batch(source, spread: Layout, *, step: int) -> list[list[int]]:
    return [
        row.tolist()
        for replica in range(spread.dp)
        for micro_batch in range(spread.num_micro_batches)
        for row in tokens.batch(source, spread, step=step, replica=replica, micro_batch=micro_batch)
    ]


@pytest.mark.parametrize("dtype", ["uint16", "uint32"])
def test_samples_are_consecutive_windows_that_share_one_token(tmp_path: Path, dtype: str) -> None:
    source = open_tokens(write_tokens(tmp_path, list(range(100, 111)), dtype=dtype))
    assert source.num_samples == 2
    assert source.sample(0).tolist() == [100, 101, 102, 103, 104]
    assert source.sample(1).tolist() == [104, 105, 106, 107, 108]
    assert source.sample(1).dtype == np.int64


def test_tokens_above_two_to_the_sixteenth_survive(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [1, 70000, 2, 100255, 3], dtype="uint32", vocab_size=100256)
    source = sources.open_source(find_facts(str(path)), sequence_length=4, vocab_size=128256, seed=1)
    assert source.sample(0).tolist() == [1, 70000, 2, 100255, 3]


@pytest.mark.parametrize(("dp", "micro_batch_size", "num_micro_batches"), [(1, 12, 1), (3, 1, 4), (2, 3, 2)])
def test_a_step_trains_on_the_same_rows_under_every_layout(
    tmp_path: Path, dp: int, micro_batch_size: int, num_micro_batches: int
) -> None:
    # 7 samples of 4 tokens: step 2 holds positions 12 to 23 and crosses from epoch 1 to 3
    source = open_tokens(write_tokens(tmp_path, list(range(30))))
    spread = layout(dp=dp, micro_batch_size=micro_batch_size, num_micro_batches=num_micro_batches)
    starts = [4 * sample_index(position, num_samples=7, seed=1) for position in range(12, 24)]
    assert global_batch(source, spread, step=2) == [list(range(start, start + 5)) for start in starts]


def test_synthetic_tokens_depend_on_seed_and_index_alone() -> None:
    facts = find_facts("synthetic")
    one, same, other = (
        sources.open_source(facts, sequence_length=64, vocab_size=50, seed=seed) for seed in (1, 1, 2)
    )
    assert one.num_samples is None
    assert one.sample(10**12).tolist() == same.sample(10**12).tolist()
    assert one.sample(0).tolist() != other.sample(0).tolist()
    assert one.sample(0).tolist() != one.sample(1).tolist()


def test_synthetic_tokens_are_uniform_over_the_vocabulary() -> None:
    # 1000 samples of 65 tokens below 50: 1300 a token, standard deviation sqrt(1300 * 0.98) = 36
    source = sources.SyntheticSource(sequence_length=64, vocab_size=50, seed=1)
    counts = np.bincount(np.concatenate([source.sample(index) for index in range(1000)]), minlength=50)
    assert counts.size == 50
    assert abs(counts - 1300).max() < 5 * 36


def test_synthetic_batches_never_repeat_a_sample() -> None:
    source = sources.SyntheticSource(sequence_length=16, vocab_size=1000, seed=1)
    spread = layout(dp=2, micro_batch_size=2, num_micro_batches=2)
    rows = {tuple(row) for step in range(1, 51) for row in global_batch(source, spread, step=step)}
    assert len(rows) == 50 * 8


def test_the_builtin_text_is_python_and_has_the_size_that_was_foretold() -> None:
    facts = find_facts("builtin:python-source")
    source = sources.open_source(facts, sequence_length=128, vocab_size=256, seed=1)
    assert source.tokens.size == facts.num_tokens > 5_000_000
    assert facts.vocab_size == 256
    first = python_source.source_files()[0].path.read_bytes()[:129]
    assert bytes(source.sample(0).astype(np.uint8)) == first


def test_the_builtin_text_is_in_the_order_of_relative_names(tmp_path: Path) -> None:
    for name in ("b.py", "a/z.py", "a.py", "test/t.py", "a/__pycache__/c.py", "d.txt", "sitecustomize.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"# {name}\n")
    (tmp_path / "empty.py").touch()
    found = [file.path.relative_to(tmp_path).as_posix() for file in python_source.source_files(tmp_path)]
    # "a.py" before "a/z.py": "." sorts before "/"
    assert found == ["a.py", "a/z.py", "b.py"]


def test_a_python_without_source_files_says_what_else_to_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "python311.zip"))
    with pytest.raises(DataError, match=r"no \.py files under .*python311\.zip") as caught:
        find_facts("builtin:python-source")
    assert caught.value.faults[0].fix == "data.train: synthetic, or a token file"


def test_a_token_outside_the_vocabulary_is_found_where_it_is(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [*range(50), 1000, *range(49)])
    source = open_tokens(path)
    with pytest.raises(DataError) as caught:
        tokens.check_tokens(source, part=0, parts=1)
    # uint16: index 50 is byte 100
    assert caught.value.faults[0].message == (
        f"{path}: token 1000 at index 50 (byte 100) is outside the vocabulary"
    )
    assert caught.value.faults[0].allowed == "0 to 999"


def test_the_shares_together_see_every_token(tmp_path: Path) -> None:
    # 11 tokens in 4 shares end at 2, 5, 8, 11
    for wrong, share in [(0, 0), (1, 0), (2, 1), (4, 1), (5, 2), (7, 2), (8, 3), (10, 3)]:
        values = [5] * 11
        values[wrong] = 60000
        source = open_tokens(write_tokens(tmp_path, values))
        assert [part for part in range(4) if _refuses(source, part)] == [share]


def _refuses(source, part: int) -> bool:
    try:
        tokens.check_tokens(source, part=part, parts=4)
    except DataError:
        return True
    return False


def test_a_share_is_scanned_across_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokens, "_CHUNK_TOKENS", 3)
    source = open_tokens(write_tokens(tmp_path, [*[1] * 10, 2000]))
    with pytest.raises(DataError, match="index 10 "):
        tokens.check_tokens(source, part=0, parts=1)


def test_more_shares_than_tokens_are_fine(tmp_path: Path) -> None:
    source = open_tokens(write_tokens(tmp_path, [1, 2, 3, 4, 5]))
    for part in range(16):
        tokens.check_tokens(source, part=part, parts=16)


def test_a_batch_refuses_a_wrong_token_of_its_own(tmp_path: Path) -> None:
    source = open_tokens(write_tokens(tmp_path, [1, 2, 3, 4, 1000]))
    with pytest.raises(DataError, match=r"token 1000 at index 4 \(byte 8\)"):
        tokens.batch(
            source, layout(dp=1, micro_batch_size=1, num_micro_batches=1), step=1, replica=0, micro_batch=0
        )


def test_a_file_cut_short_while_in_use_is_an_error_and_no_crash(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, list(range(1000)) * 10)
    source = open_tokens(path)
    os.truncate(path, 4096)
    with pytest.raises(DataError, match="cut short while it was in use: 7952 tokens are gone"):
        source.sample(source.num_samples - 1)


def test_a_file_replaced_or_deleted_while_in_use_goes_on_as_it_was(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [1, 2, 3, 4, 5])
    source = open_tokens(path)
    path.unlink()
    write_tokens(tmp_path, [9])
    assert source.sample(0).tolist() == [1, 2, 3, 4, 5]


def test_a_file_that_changed_after_the_plan_is_refused(tmp_path: Path) -> None:
    facts = find_facts(str(write_tokens(tmp_path, list(range(20)))))
    write_tokens(tmp_path, list(range(30)))
    with pytest.raises(DataError, match="had 20 tokens when the plan was made and has 30 now"):
        sources.open_source(facts, sequence_length=4, vocab_size=1000, seed=1)


def test_too_few_tokens_for_one_sequence_are_refused(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [1, 2, 3, 4])
    with pytest.raises(DataError, match="has 4 tokens, a sequence of 4 needs 5") as caught:
        open_tokens(path)
    assert caught.value.faults[0].fix == "training.sequence_length: 3"


def test_a_vocabulary_larger_than_the_models_is_refused(tmp_path: Path) -> None:
    path = write_tokens(tmp_path, [1, 2, 3, 4, 5], vocab_size=1001)
    with pytest.raises(DataError, match="has a vocabulary of 1001, the model one of 1000"):
        open_tokens(path)


def test_the_file_is_mapped_and_not_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus.bin"
    num_tokens = 2**40
    with open(path, "wb") as file:
        file.truncate(2 * num_tokens)  # sparse: 2 TiB of zeros that no disk or memory holds
    path.with_suffix(".json").write_text(
        f'{{"format": "partrain-tokens", "version": 1, "dtype": "uint16", '
        f'"num_tokens": {num_tokens}, "vocab_size": 1000}}'
    )
    source = open_tokens(path, sequence_length=4096)
    assert source.num_samples == 2**28 - 1
    assert not source.sample(source.num_samples - 1).any()


def test_a_plan_of_an_endless_dataset_keeps_no_count() -> None:
    facts = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    assert sources.open_source(facts, sequence_length=4, vocab_size=9, seed=0).num_samples is None
