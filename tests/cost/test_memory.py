"""Estimates against sums made by hand, and the laws they keep to."""

from itertools import pairwise

import pytest

from partrain.cost.constants import CONSTANTS
from partrain.cost.estimate import Estimate, Moment
from partrain.cost.laws import ALWAYS, Wrapper, law_of
from partrain.cost.quantities import Buckets, quantities
from partrain.cost.walk import walk
from partrain.model.activations import Share, layer_tapes
from partrain.model.profile import CPU as CPU_KERNELS
from partrain.model.profile import GPU as GPU_KERNELS
from partrain.model.shape import parameters
from partrain.model.tape import Tape
from tests.cost.jobs import CPU, H100, LENGTH, estimate_of, model_of

LLAMA = model_of()
STATES = ("parameters", "master weights", "optimizer states", "parameters of this rank's share")


def moment_of(found: Estimate, name: str, stage: int = 0) -> Moment:
    return next(moment for moment in found.stages[stage].moments if moment.name == name)


def states_of(found: Estimate) -> int:
    terms = moment_of(found, "evaluation").by_name
    return sum(size for name, size in terms.items() if name in STATES)


def test_bf16_keeps_fp32_gradients_and_shares_the_optimizer() -> None:
    # 2 of weights, 4 of gradients, (4 + 8) / 2 of the optimizer; two groups aligned to 2 x 2 elements
    found = estimate_of(LLAMA, dp=2, work={"precision": "bf16"})
    terms, count = moment_of(found, "step").by_name, parameters(LLAMA)
    assert terms["parameters"] == 2 * count
    assert terms["gradients in fp32"] == 4 * count
    assert terms["master weights"] + terms["optimizer states"] == 12 * count // 2
    assert terms["gradients"] == 2 * count


def test_the_reduction_flattens_what_fits_one_bucket_and_sends_16_bits() -> None:
    found = moment_of(estimate_of(LLAMA, dp=2, work={"precision": "bf16"}), "reduction").by_name
    assert found["gradients, flattened to be reduced"] == 4 * parameters(LLAMA)
    assert found["gradients, in the format they are sent in"] == 2 * parameters(LLAMA)


def test_one_tensor_is_not_flattened() -> None:
    # the group that decays closes a bucket of its own, which is sent as it lies
    found = quantities([[600_000_000], [1000]], dp=2, buckets=Buckets())
    assert (found["flattened"], found["sent"]) == (0, 600_000_000)


def test_a_sub_group_is_closed_by_the_weight_that_fills_it() -> None:
    found = quantities([[30, 30, 30, 30]], dp=1, buckets=Buckets(sub_group=50))
    assert found["sub group"] == 60


def test_a_share_touches_whole_weights() -> None:
    # 12 elements over two replicas: the first 6 lie in the weights of 4 and 5, the others in those of 5 and 3
    found = quantities([[4, 5, 3]], dp=2, buckets=Buckets())
    assert (found["share"], found["owned"]) == (6, 9)


@pytest.mark.parametrize("tp", [1, 2, 4])
def test_a_gpt_block_keeps_what_korthikanti_counts(tp: int) -> None:
    # 8 + 24 / t bytes a token and hidden element: table 2 of Korthikanti et al. 2022 without dropout's masks
    # (2) and with flash attention in place of the scores (5 a s / h); beside them a log-sum-exp a head and
    # two numbers a norm, in fp32
    tokens, width, heads = LENGTH, 128, 8
    held = 8 * tokens * width + 24 * tokens * width // tp + 4 * tokens * heads // tp + 2 * 8 * tokens
    assert walk(gpt_block(tp=tp, sequence_parallel=False)).held == held


@pytest.mark.parametrize("tp", [2, 4])
def test_a_split_sequence_is_kept_gathered(tp: int) -> None:
    # the residual stream is split (2 x 2 / t), what is gathered of it for the matrices is whole (2 x 2)
    tokens, width, heads = LENGTH, 128, 8
    held = 4 * tokens * width + 28 * tokens * width // tp + 4 * tokens * heads // tp + 2 * 8 * tokens // tp
    assert walk(gpt_block(tp=tp, sequence_parallel=True)).held == held


def gpt_block(*, tp: int, sequence_parallel: bool) -> Tape:
    share = Share(
        sequences=1,
        sequence_length=LENGTH,
        tp=tp,
        sequence_parallel=sequence_parallel,
        precision="bf16",
        recompute="none",
        loss_chunk_size="none",
    )
    return layer_tapes(model_of(family="gpt2", max_positions=LENGTH), share, GPU_KERNELS).block


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_states_fall_as_more_is_shared(zero: int) -> None:
    sizes = [states_of(estimate_of(LLAMA, dp=dp, zero=zero)) for dp in (1, 2, 4)]
    assert all(more >= less for more, less in pairwise(sizes))


def test_states_fall_as_tensors_are_split() -> None:
    sizes = [states_of(estimate_of(LLAMA, tp=tp)) for tp in (1, 2, 4)]
    assert all(more > less for more, less in pairwise(sizes))


@pytest.mark.parametrize("machine", [CPU, H100], ids=["cpu", "gpu"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
def test_no_moment_falls_with_the_micro_batch(machine, precision, zero, recompute) -> None:  # type: ignore[no-untyped-def]
    def found(size: int) -> Estimate:
        work = {"precision": precision}
        return estimate_of(
            LLAMA, machine=machine, work=work, zero=zero, recompute=recompute, micro_batch_size=size, dp=2
        )

    small, large = found(1).stages[0].moments, found(2).stages[0].moments
    assert [moment.name for moment in small] == [moment.name for moment in large]
    assert all(less.bytes <= more.bytes for less, more in zip(small, large, strict=True))


def test_each_moment_is_the_sum_of_its_terms_and_the_peak_the_worst() -> None:
    found = estimate_of(LLAMA, pp=2, tp=2, dp=2, work={"precision": "bf16"}, machine=H100)
    for stage in found.stages:
        assert stage.peak_bytes == max(sum(term.bytes for term in moment.terms) for moment in stage.moments)
        assert stage.device_bytes > stage.reserved_bytes > stage.peak_bytes
        assert all(term.bytes > 0 for moment in stage.moments for term in moment.terms)


def test_earlier_stages_hold_more_micro_batches() -> None:
    found = estimate_of(model_of(num_layers=8), pp=4, num_micro_batches=8)
    waiting = [moment_of(found, "backward", stage).waiting for stage in range(4)]
    assert all(more > less for more, less in pairwise(waiting))
    assert waiting[-1] == 0


def test_one_micro_batch_has_no_later_ones() -> None:
    names = [moment.name for moment in estimate_of(LLAMA, num_micro_batches=1).stages[0].moments]
    assert "first backward" in names
    assert "backward" not in names


def test_recompute_trades_what_is_held_for_one_block() -> None:
    none, full = (estimate_of(LLAMA, recompute=policy, zero=2, dp=2) for policy in ("none", "full"))
    assert full.peak_bytes < none.peak_bytes


def test_offloaded_states_are_the_hosts() -> None:
    found = estimate_of(LLAMA, dp=2, zero=2, offload="optimizer", machine=H100, work={"precision": "bf16"})
    names = {term.name for term in found.host}
    assert {"master weights", "optimizer states"} <= names
    assert not names & set(moment_of(found, "step").by_name)


def test_ranks_on_cpus_share_the_host() -> None:
    found = estimate_of(LLAMA, dp=2, pp=2)
    assert found.host_bytes >= 2 * sum(stage.peak_bytes for stage in found.stages)


def test_a_checkpoint_has_each_parameter_once() -> None:
    assert estimate_of(LLAMA, dp=4, tp=2).checkpoint_bytes == 12 * parameters(LLAMA)


def test_a_wrapper_that_deepspeed_does_not_have_is_refused() -> None:
    wish = Wrapper(zero=0, precision="bf16", grad_accum="fp32", pipeline=True, offload="none")
    with pytest.raises(ValueError, match="ZeRO 0 in bf16"):
        law_of(wish)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_rows_name_quantities_and_phases_that_exist(zero: int, precision: str) -> None:
    known = quantities([[8], [2]], dp=2, buckets=Buckets())
    law = law_of(
        Wrapper(zero=zero, precision=precision, grad_accum="fp32", pipeline=zero < 2, offload="none")
    )
    assert all(row.of in known for row in law.rows)
    assert all(row.when <= ALWAYS | {"construction"} for row in law.rows)


def test_fitted_numbers_are_few_and_have_a_source() -> None:
    assert len(CONSTANTS) <= 15
    assert all(constant.source for constant in CONSTANTS)


def test_a_cpu_norm_of_single_operators_keeps_copies_in_fp32() -> None:
    # the input and its normed self in fp32, and one number a token (torch 2.13, saved tensors of rms_norm)
    kernel = CPU_KERNELS.norms["rmsnorm", "bf16"]
    assert (kernel.keeps_input, kernel.copies, kernel.statistics) == (False, 8, 4)
