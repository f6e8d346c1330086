from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from partrain.errors import Reason
from partrain.layout.rules import RULES, reasons, tensor_degrees
from partrain.spec.catalog import node
from partrain.spec.forms import section_keys
from partrain.spec.optimizers import OPTIMIZERS
from tests.layout.proposals import CPU, model, proposal


def only(**changed: Any) -> Reason:
    (reason,) = reasons(proposal(**changed))
    return reason


def test_a_plain_layout_is_legal() -> None:
    assert reasons(proposal()) == ()


def test_tp_must_divide_the_heads() -> None:
    wide = model("llama-3.1-8b", num_kv_heads=32, mlp_size=96)
    reason = only(model=wide, tp=6)
    assert reason.message == "tp=6 does not divide num_heads=32, num_kv_heads=32"
    assert reason.allowed == "1, 2, 4, 8, 16, 32"
    assert reason.fix == "tp: 4 or 8"
    assert reason.paths[0] == "parallel.tp"


def test_tp_must_divide_kv_heads() -> None:
    reason = only(tp=16, nodes=2)
    assert reason.message == "tp=16 does not divide num_kv_heads=8"
    assert reason.allowed == "1, 2, 4, 8"
    assert reason.fix == "tp: 8"


def test_tp_must_divide_the_mlp() -> None:
    assert (
        only(model=model("llama-3.1-8b", mlp_size=14338), tp=4).message
        == "tp=4 does not divide mlp_size=14338"
    )


def test_the_tensor_degrees_offered_divide_all_three() -> None:
    # 32 heads, 8 key and value heads, MLP 14336 = 2^11 x 7: common divisors 1, 2, 4, 8.
    for tp in (1, 2, 4, 8):
        assert reasons(proposal(tp=tp)) == ()


def test_every_stage_needs_a_block_or_the_head() -> None:
    tiny = model("tiny")
    assert reasons(proposal(model=tiny, pp=5)) == ()
    reason = only(model=tiny, pp=6)
    assert reason.message == "pp=6 is more stages than num_layers=4 and the head can fill"
    assert (reason.allowed, reason.fix) == ("1 to 5", "pp: 5")


def test_the_batch_is_dp_times_micro_batch_times_micro_batches() -> None:
    reason = only(global_batch_size=64, dp=1, micro_batch_size=5)
    assert (
        reason.message
        == "global_batch_size=64 is not a multiple of dp=1 x micro_batch_size=5 (64 / 5 = 12.80)"
    )
    assert reason.fix == "global_batch_size: 60 or 65; or micro_batch_size: 4 or 8"
    assert reason.paths == ("training.micro_batch_size", "parallel.dp", "training.global_batch_size")


def test_a_recipe_for_more_replicas_than_fit_the_batch() -> None:
    # 64 / (3 x 4) = 5.33; with micro-batches of 4 there are 16, so dp may be 2 or 4.
    reason = only(global_batch_size=64, dp=3, micro_batch_size=4)
    assert reason.fix == "global_batch_size: 60 or 72; or dp: 2 or 4"


def test_a_batch_smaller_than_one_micro_batch_can_only_grow() -> None:
    assert only(global_batch_size=4, dp=8, micro_batch_size=1).fix == "global_batch_size: 8; or dp: 4"


def test_with_the_micro_batch_left_open_dp_must_divide_the_batch() -> None:
    reason = only(global_batch_size=32, dp=3, micro_batch_size=None)
    assert reason.message == "global_batch_size=32 is not a multiple of dp=3 (32 / 3 = 10.67)"
    assert reason.fix == "global_batch_size: 30 or 33; or dp: 2 or 4"


def test_every_batch_fix_is_legal() -> None:
    for batch, dp, micro in product((7, 24, 64), (1, 2, 3, 5), (1, 2, 5)):
        found = reasons(proposal(global_batch_size=batch, dp=dp, micro_batch_size=micro))
        for option in found[0].fix.split("; or ") if found else ():
            name, _, values = option.partition(": ")
            for value in values.split(" or "):
                assert (
                    reasons(
                        proposal(
                            **{
                                "global_batch_size": batch,
                                "dp": dp,
                                "micro_batch_size": micro,
                                name: int(value),
                            }
                        )
                    )
                    == ()
                )


def test_zero_0_is_for_fp32_without_a_pipeline() -> None:
    assert reasons(proposal(zero=0, precision="fp32")) == ()
    assert only(zero=0).message == "zero=0 does not go with precision=bf16"
    assert only(zero=0, precision="fp32", pp=2).message == "zero=0 does not go with a pipeline (pp=2)"


@pytest.mark.parametrize(
    ("offload", "zero", "fix"),
    [
        ("optimizer", 1, "zero: 2 or 3; or offload: none"),
        ("parameters", 1, "zero: 3; or offload: none"),
        ("parameters", 2, "zero: 3; or offload: optimizer"),
    ],
)
def test_offload_needs_a_stage_that_shards_what_is_offloaded(offload: str, zero: int, fix: str) -> None:
    found = only(offload=offload, zero=zero)
    assert found.message == f"offload={offload} does not go with zero={zero}"
    assert found.fix == fix
    assert reasons(proposal(offload=offload, zero=3)) == ()


def test_fp16_is_for_gpus_with_shards() -> None:
    assert reasons(proposal(precision="fp16", loss_scale=1024.0)) == ()
    assert only(precision="fp16", machine=CPU).message == "precision=fp16 came on a CPU"
    assert only(precision="fp16", zero=0).message == "zero=0 does not go with precision=fp16"


def test_a_loss_scale_is_for_fp16() -> None:
    assert only(loss_scale=2048.0).message == "loss_scale=2048 does not go with precision=bf16"


@pytest.mark.parametrize("zero", [0, 1, 2])
def test_muon_works_where_a_rank_knows_whole_matrices(zero: int) -> None:
    assert reasons(proposal(optimizer="muon", zero=zero, precision="bf16" if zero else "fp32", tp=2)) == ()


def test_muon_is_refused_with_zero_3_and_offload() -> None:
    assert only(optimizer="muon", zero=3).fix == "zero: 1 or 2; or name: adamw or lion"
    assert only(optimizer="muon", zero=2, offload="optimizer").fix == "offload: none; or name: adamw or lion"


def test_states_of_8_bits_are_for_gpus() -> None:
    assert reasons(proposal(optimizer="adamw8bit", zero=3)) == ()
    assert only(optimizer="adamw8bit", machine=CPU).message == "name=adamw8bit came on a CPU"


def test_every_optimizer_works_somewhere_on_gpus() -> None:
    for name, facts in OPTIMIZERS.items():
        for zero in facts.zero:
            precision = "bf16" if zero else "fp32"
            assert reasons(proposal(optimizer=name, zero=zero, precision=precision)) == ()


@pytest.mark.parametrize("zero", [2, 3])
def test_sharded_gradients_do_not_go_with_a_pipeline(zero: int) -> None:
    assert reasons(proposal(zero=zero)) == ()
    assert only(zero=zero, pp=2).message == f"zero={zero} does not go with a pipeline (pp=2)"


def test_sequence_parallel_needs_a_tensor_group() -> None:
    assert reasons(proposal(sequence_parallel=True, tp=2)) == ()
    reason = only(sequence_parallel=True)
    assert reason.message == "sequence_parallel=true needs a tensor group, and tp=1"
    assert reason.fix == "sequence_parallel: false, or tp: 2"


def test_sequence_parallel_offers_no_tensor_group_that_is_not_legal() -> None:
    odd = model("tiny-gpt", num_heads=5, hidden_size=125, mlp_size=36)
    reason = only(model=odd, sequence_parallel=True)
    assert reason.fix == "sequence_parallel: false"
    assert list(tensor_degrees(proposal(model=odd))) == []


def test_tensor_degrees_divide_heads_and_sequence_and_have_devices() -> None:
    assert list(tensor_degrees(proposal())) == [2, 4, 8]
    assert list(tensor_degrees(proposal(sequence_length=12))) == [2, 4]
    assert list(tensor_degrees(proposal(dp=4))) == [2]
    assert list(tensor_degrees(proposal(model=None))) == []


def test_sequence_parallel_needs_equal_parts_of_the_sequence() -> None:
    reason = only(sequence_parallel=True, tp=4, sequence_length=127)
    assert reason.message == "tp=4 does not divide sequence_length=127, which sequence_parallel=true needs"
    assert reason.fix == "sequence_length: 124 or 128; or sequence_parallel: false"


def test_a_sequence_shorter_than_the_tensor_group_can_only_grow() -> None:
    assert only(sequence_parallel=True, tp=4, sequence_length=3).fix.startswith("sequence_length: 4;")


def test_every_rank_needs_a_device() -> None:
    assert reasons(proposal(dp=2, pp=2, tp=2)) == ()
    reason = only(dp=2, pp=2, tp=4)
    assert reason.message == "dp=2 x pp=2 x tp=4 = 16 ranks are more than the 8 of 1 x 8 h100"
    assert reason.fix == "tp: 2; or hardware.nodes: 2"
    assert reason.paths[0] == "parallel.tp"
    assert reasons(proposal(dp=2, pp=2, tp=4, nodes=2)) == ()


def test_without_gpus_ranks_share_the_cores_up_to_64() -> None:
    assert reasons(proposal(machine=CPU, dp=64)) == ()
    reason = only(machine=CPU, dp=65, global_batch_size=65)
    assert (
        reason.message
        == "dp=65 x pp=1 x tp=1 = 65 ranks are more than the 64 of 1 x 64 ranks (the most on a CPU)"
    )


def test_a_machine_without_devices_offers_nothing() -> None:
    reason = only(machine=replace(node("8xh100"), num_devices=0))
    assert reason.fix == ""


def test_what_needs_the_model_is_not_judged_without_it() -> None:
    assert reasons(proposal(model=None, tp=7, pp=1)) == ()


def test_all_rules_are_judged_together() -> None:
    broken = proposal(
        dp=3, pp=40, tp=6, zero=0, sequence_parallel=True, sequence_length=127, micro_batch_size=5
    )
    assert len(reasons(broken)) == 7


def test_every_reason_names_key_paths_of_a_job() -> None:
    bad = proposal(dp=3, pp=40, tp=6, zero=0, sequence_parallel=True, sequence_length=127, micro_batch_size=5)
    for reason in reasons(bad):
        for section, key in (path.split(".") for path in reason.paths):
            assert key in section_keys((section,))


def test_each_rule_is_in_the_table_once() -> None:
    assert len(set(RULES)) == len(RULES)


def test_tensors_within_a_compiled_program_are_not_counted_on_cpus() -> None:
    assert reasons(proposal(compile=True, track_memory=True)) == ()  # a GPU's allocator counts them
    assert reasons(proposal(machine=CPU, track_memory=True)) == ()
    assert only(machine=CPU, compile=True, track_memory=True).fix == "compile: false, or track_memory: false"


def test_zero_3_and_attention_dropout_stand_against_compiling() -> None:
    assert reasons(proposal(compile=True, zero=2)) == ()
    assert only(compile=True, zero=3).fix == "compile: false, or zero: 2"
    dropping = model("llama-3.1-8b", attention_dropout=0.1)
    assert reasons(proposal(model=dropping)) == ()
    assert only(model=dropping, compile=True).fix == "compile: false, or attention_dropout: 0"


@pytest.mark.parametrize(
    ("changed", "because"),
    [
        ({"precision": "fp32"}, "precision=fp32: on GPUs the kernel is for 16 bits"),
        ({"model": model("mistral-7b-v0.1", sliding_window=64)}, "sliding_window=64, which needs a mask"),
        ({"model": model("tiny", head_size=320)}, "head_size=320: 256 is its widest"),
        (
            {"machine": CPU, "precision": "fp32", "model": model("tiny", attention_dropout=0.1)},
            "attention_dropout=0.1 on a CPU",
        ),
    ],
)
def test_flash_attention_has_limits(changed: dict[str, Any], because: str) -> None:
    reason = only(attention="flash", **changed)
    assert reason.message == f"attention=flash does not go with {because}"
    assert reasons(proposal(attention="math", **changed)) == ()


def test_flash_attention_takes_what_has_no_such_thing() -> None:
    assert reasons(proposal(attention="flash")) == ()
    assert reasons(proposal(attention="flash", model=model("mistral-7b-v0.1"))) == ()  # its window is longer
    assert reasons(proposal(attention="flash", machine=CPU, precision="fp32")) == ()


def test_what_cpus_lack_is_refused_there() -> None:
    assert only(machine=CPU, attention="efficient").paths[0] == "training.attention"
    assert only(machine=CPU, tf32=True).fix == "tf32: false"
    assert reasons(proposal(attention="efficient", tf32=True)) == ()
