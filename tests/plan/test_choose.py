import pytest

from partrain.layout.rules import reasons
from partrain.plan.choose import Choice, choose
from partrain.plan.decide import decide
from partrain.plan.plan import Plan
from partrain.spec.catalog import node
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.resolve import resolve_model
from tests.plan.jobs import CPU, DEMO, read

GPUS = node("8xh100")


def chosen(*overrides: str, machine: MachineFacts = CPU) -> Choice:
    plain = DEMO.replace("parallel: {pp: 2, tp: 2}\n", "")
    job = read(plain, *overrides).job
    assert job is not None
    model = resolve_model(job.model, sequence_length=job.training.sequence_length, vocab_size=256).model
    return choose(job, model=model, machine=machine)


def test_auto_degrees_are_one() -> None:
    wish = chosen().proposal
    assert (wish.dp, wish.pp, wish.tp, wish.zero, wish.sequence_parallel) == (1, 1, 1, 0, False)


@pytest.mark.parametrize(
    ("override", "zero"),
    [("parallel.dp=2", 1), ("parallel.pp=2", 1), ("parallel.tp=2", 0), ("training.precision=bf16", 1)],
)
def test_an_auto_zero_shards_where_there_is_something_to_shard_or_no_other_way(
    override: str, zero: int
) -> None:
    assert chosen(override).proposal.zero == zero


@pytest.mark.parametrize(("offload", "zero"), [("optimizer", 2), ("parameters", 3)])
def test_an_auto_zero_is_the_lowest_that_can_offload(offload: str, zero: int) -> None:
    choice = chosen(f"parallel.offload={offload}")
    assert choice.proposal.zero == zero
    assert choice.origins["parallel.zero"] == f"auto: the lowest that can offload {offload}"


def test_every_auto_says_why() -> None:
    assert set(chosen().origins) == {
        "parallel.dp",
        "parallel.pp",
        "parallel.tp",
        "parallel.zero",
        "parallel.sequence_parallel",
        "training.precision",
        "training.recompute",
        "training.micro_batch_size",
        "training.compile",
        "training.attention",
    }


def test_what_is_given_is_not_explained() -> None:
    assert "parallel.dp" not in chosen("parallel.dp=2").origins


@pytest.mark.parametrize(
    ("overrides", "machine", "precision"),
    [((), CPU, "fp32"), ((), GPUS, "bf16"), (("parallel.zero=0",), GPUS, "fp32")],
)
def test_precision_follows_the_machine_unless_zero_0_asks_for_fp32(
    overrides: tuple[str, ...], machine: MachineFacts, precision: str
) -> None:
    assert chosen(*overrides, machine=machine).proposal.precision == precision


@pytest.mark.parametrize(
    ("length", "tp", "on"), [("128", "2", True), ("127", "2", False), ("128", "1", False)]
)
def test_sequence_parallel_is_on_where_a_tensor_group_can_have_it(length: str, tp: str, on: bool) -> None:
    choice = chosen(f"training.sequence_length={length}", f"parallel.tp={tp}")
    assert choice.proposal.sequence_parallel is on


def test_sequence_parallel_asks_an_auto_tp_for_the_smallest_group() -> None:
    choice = chosen("parallel.sequence_parallel=true")
    assert choice.proposal.tp == 2
    assert choice.exhausted == frozenset()


def test_an_auto_with_nothing_legal_left_is_exhausted() -> None:
    choice = chosen("parallel.sequence_parallel=true", machine=node("1xh100"))
    assert choice.exhausted == {"parallel.tp"}


@pytest.mark.parametrize(
    ("batch", "dp", "pp", "micro"),
    [
        (32, 1, 1, 8),  # the largest divisor up to 8
        (30, 1, 1, 6),
        (32, 2, 1, 8),
        (32, 1, 2, 4),  # 8 micro-batches for 2 stages
        (32, 1, 4, 2),  # 16 for 4
        (8, 1, 4, 1),  # too few in any case
        (7, 1, 1, 7),
    ],
)
def test_auto_micro_batch(batch: int, dp: int, pp: int, micro: int) -> None:
    overrides = (f"training.global_batch_size={batch}", f"parallel.dp={dp}", f"parallel.pp={pp}")
    assert chosen(*overrides).proposal.micro_batch_size == micro


def test_auto_micro_batch_is_left_open_where_dp_does_not_divide_the_batch() -> None:
    assert chosen("parallel.dp=3").proposal.micro_batch_size is None


@pytest.mark.parametrize("preset", ["tiny", "gpt2-xl", "llama-3.1-8b"])
@pytest.mark.parametrize("machine", [CPU, GPUS], ids=["cpu", "gpus"])
def test_all_auto_is_always_legal(preset: str, machine: MachineFacts) -> None:
    assert reasons(chosen(f"model.preset={preset}", machine=machine).proposal) == ()


LLAMA = "model.preset=llama-3.1-8b"


def planned(*overrides: str) -> Plan:
    plain = DEMO.replace("parallel: {pp: 2, tp: 2}\n", "")
    random = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    return decide(read(plain, "data.train=synthetic", *overrides), machine=GPUS, data=random)


@pytest.mark.parametrize(
    ("overrides", "size"),
    [
        # A token's logits: 128,256 x 6 bytes in bf16 = 751.5 KiB. A block keeps 4 x 4096 + 2 x (32 + 8) x 128
        # + 4 x 14336 = 83,968 elements, 164 KiB: 32 of them outweigh the logits; 3, or 32 inputs, do not.
        ((), "none"),
        (("parallel.pp=8",), 2048),
        (("training.recompute=full",), 2048),
        # 4 stages: the last has 7 blocks, 1.1 MiB a token.
        (("parallel.pp=4",), "none"),
        (("training.recompute=full", "training.micro_batch_size=1", "training.sequence_length=2048"), "none"),
        (("training.loss_chunk_size=512",), 512),
        (("training.loss_chunk_size=none", "training.recompute=full"), "none"),
    ],
    ids=lambda value: ",".join(value) if isinstance(value, tuple) else str(value),
)
def test_an_auto_loss_is_in_slices_where_logits_outweigh_the_last_stage(
    overrides: tuple[str, ...], size: int | str
) -> None:
    long = ("training.sequence_length=8192", "training.micro_batch_size=1")
    assert planned(LLAMA, *long, *overrides).training.loss_chunk_size == size


def test_an_auto_loss_says_what_was_weighed() -> None:
    plan = planned(LLAMA, "training.sequence_length=8192", "training.recompute=full")
    # 32 blocks keep 4096 bf16 numbers each.
    assert plan.origins["training.loss_chunk_size"] == (
        "auto: a token's logits take 751.5 KiB, the last stage's blocks keep 256.0 KiB"
    )


@pytest.mark.parametrize(
    ("overrides", "compiled", "why"),
    [
        ((), True, "auto: on GPUs"),
        (("parallel.zero=3",), False, "auto: compile=true does not go with zero=3"),
        (("model.attention_dropout=0.1",), False, "auto: compile=true does not go with attention_dropout"),
    ],
)
def test_blocks_are_compiled_on_gpus_where_that_is_legal(
    overrides: tuple[str, ...], compiled: bool, why: str
) -> None:
    choice = chosen(*overrides, machine=GPUS)
    assert (choice.proposal.compile, choice.origins["training.compile"]) == (compiled, why)
    assert not chosen(*overrides).proposal.compile
    assert chosen("training.compile=true").proposal.compile
