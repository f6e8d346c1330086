"""Plans that someone edited, judged before they are launched."""

from __future__ import annotations

import json
from typing import Any

import pytest

from partrain.plan.judge import plan_faults
from partrain.plan.plan import Plan
from partrain.spec.catalog import node
from partrain.spec.values import plain
from tests.plan.jobs import DEMO, planned


def edited(plan: Plan, changes: dict[str, Any]) -> Plan:
    """`plan` with other values at some key paths, as an editor of its file would leave it."""
    values: dict[str, Any] = json.loads(json.dumps(plain(plan)))
    for path, value in changes.items():
        *above, key = path.split(".")
        place: Any = values
        for part in above:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[key] = value
    return Plan.from_json(json.dumps(values))


def faults(**changes: Any) -> dict[str, str]:
    """Key path -> message of all that stands against the demo's plan with `changes`, `__` for a dot."""
    plan = edited(planned(), {path.replace("__", "."): value for path, value in changes.items()})
    return {fault.path: fault.message for fault in plan_faults(plan)}


JOBS = (
    (),
    ("parallel.pp=1", "parallel.tp=1", "parallel.dp=4", "parallel.zero=0"),
    ("training.steps=3", "deepspeed.zero_optimization.reduce_bucket_size=7", "deepspeed.steps_per_print=9"),
    ("deepspeed.comms_logger.prof_ops=[all_reduce]", "launch.env.NCCL_DEBUG=INFO"),
    ("model.preset=gpt2", "parallel.tp=1", "parallel.pp=5"),
)


@pytest.mark.parametrize("overrides", JOBS, ids=len)
def test_nothing_stands_against_a_plan_as_it_was_decided(overrides: tuple[str, ...]) -> None:
    plan = planned(DEMO, *overrides)
    assert plan_faults(Plan.from_json(plan.to_json())) == ()


def test_nor_against_one_for_other_hardware() -> None:
    plan = planned(DEMO, "hardware.nodes=2", machine=node("8xh100"))
    assert plan_faults(Plan.from_json(plan.to_json())) == ()


def test_the_rules_of_layouts_hold_for_plans() -> None:
    found = faults(layout__tp=3, layout__zero=0)
    assert found["layout.tp"].startswith("tp=3 does not divide num_heads=4")
    assert found["layout.zero"] == "zero=0 does not go with a pipeline (pp=2)"
    found = faults(layout__offload="parameters")
    assert found["layout.offload"] == "offload=parameters does not go with zero=1"
    found = faults(training__tf32=True, training__attention="efficient", training__compile=True)
    assert set(found) == {"training.tf32", "training.attention"}


def test_the_optimizer_of_a_plan_has_the_numbers_it_reads() -> None:
    found = faults(training__optimizer__name="lion")
    assert found == {"training.optimizer.eps": "lion reads no eps"}
    found = faults(training__optimizer__name="muon")
    assert found == {"training.optimizer.momentum": "no number came"}
    found = faults(training__optimizer__eps=None)
    assert found == {"training.optimizer.eps": "no number came"}


def test_the_learning_rate_of_a_plan_rises_in_time_and_falls_after() -> None:
    found = faults(training__schedule__warmup_steps=10**6, training__schedule__min_lr=1.0)
    assert set(found) == {"training.schedule.warmup_steps", "training.schedule.min_lr"}


def test_muon_of_a_plan_knows_the_order_of_the_weights() -> None:
    plan = edited(planned(DEMO, "training.optimizer.name=muon"), {})
    assert plan_faults(plan) == ()
    shuffled = edited(plan, {"deepspeed.zero_optimization.round_robin_gradients": True})
    (fault,) = plan_faults(shuffled)
    assert fault.path == "deepspeed.zero_optimization.round_robin_gradients"


def test_fp16_on_a_cpu_is_refused_in_a_plan_too() -> None:
    assert faults(training__precision="fp16") == {"training.precision": "precision=fp16 came on a CPU"}


def test_more_ranks_than_the_machine_has_room_for_are_told() -> None:
    assert faults(layout__dp=99)["layout.dp"].startswith(
        "dp=99 x pp=2 x tp=2 = 396 ranks are more than the 64"
    )


def test_the_rules_of_models_and_data_hold_for_plans() -> None:
    assert (
        "sequence_length=4096 is more than max_positions"
        in faults(training__sequence_length=4096)["training.sequence_length"]
    )
    assert "are too few for a sequence of 128" in faults(data__num_tokens=100)["data"]
    assert "less than the dataset's vocabulary" in faults(data__vocab_size=999)["model.vocab_size"]


@pytest.mark.parametrize(
    "bounds",
    [
        [0, 3],  # one stage too few
        [0, 3, 4, 6],  # one too many
        [0, 3, 5],  # the head is on no stage
        [1, 3, 6],  # nor the embedding
        [0, 6, 6],  # an empty stage
        [0, 1, 6],  # the embedding alone
        [0, 7, 6],
        [],
    ],
    ids=str,
)
def test_stages_hold_every_layer_once(bounds: list[int]) -> None:
    # tiny has 4 blocks between embedding and head: layers 0 to 5.
    assert faults(layout__stage_bounds=bounds) == {"layout.stage_bounds": f"{bounds} came"}


def test_other_bounds_are_legal_with_the_stages_that_they_make() -> None:
    assert set(faults(layout__stage_bounds=[0, 2, 6])) == {
        "stages.0.last",
        "stages.0.parameters",
        "stages.1.first",
        "stages.1.parameters",
    }
    plan = planned()
    sizes = {stage: plan.stages[stage].parameters for stage in (0, 1)}
    # A block of tiny on one of two shards: 2 norms of 128, and halves of 128 x 384 and 3 x 128 x 352.
    block = 2 * 128 + 128 * 384 // 2 + 3 * 128 * 352 // 2
    changes = {"stages__0__parameters": sizes[0] - block, "stages__1__parameters": sizes[1] + block}
    assert faults(layout__stage_bounds=[0, 2, 6], stages__0__last=1, stages__1__first=2, **changes) == {}


def test_the_batch_of_the_layout_is_the_engines() -> None:
    # 2 replicas of 32 / 8 = 4 micro-batches of 4 each; the engine was told 32 sequences on one.
    micro = planned().layout.micro_batch_size
    found = faults(layout__dp=2)
    assert found["deepspeed.train_batch_size"] == ("32 came, and model, training and layout make it 64")
    assert faults(layout__micro_batch_size=2 * micro).keys() == {
        "deepspeed.train_batch_size",
        "deepspeed.train_micro_batch_size_per_gpu",
    }


def test_a_key_that_no_plan_gives_to_the_engine_is_told() -> None:
    assert faults(deepspeed__wandb={"enabled": True}) == {
        "deepspeed.wandb.enabled": "True came, and no plan has it"
    }


def test_counts_that_are_none_are_no_plan() -> None:
    for path, value in {
        "layout.dp": 0,
        "layout.zero": 4,
        "layout.recompute": "some",
        "machine.device": "tpu",
    }.items():
        with pytest.raises(ValueError, match=path):
            edited(planned(), {path: value})


def test_control_characters_are_refused_as_in_a_job() -> None:
    assert faults(run_dir="a\x00b") == {"run_dir": "a control character came"}


def test_a_value_that_was_hidden_is_no_value() -> None:
    plan = planned(DEMO, "launch.env.TOKEN=hf_1234").without_secrets()
    assert [fault.path for fault in plan_faults(plan)] == ["env.TOKEN"]
    assert "hf_1234" not in plan.to_json()


def test_a_plan_that_keeps_what_it_does_not_save_is_refused() -> None:
    assert "every=none" in faults(checkpoint__every="none", checkpoint__keep_every=5)["checkpoint.keep_every"]


def test_a_plan_that_exports_what_it_cannot_is_refused() -> None:
    assert "every=none" in faults(checkpoint__every="none", checkpoint__export="hf")["checkpoint.export"]
    strange = edited(planned(DEMO, "model.norm=layernorm", "model.bias=true"), {"checkpoint.export": "hf"})
    said = [fault.message for fault in plan_faults(strange) if fault.path == "checkpoint.export"]
    assert [message.split(":")[0] for message in said] == ["model.norm", "model.bias", "model.qkv_bias"]
