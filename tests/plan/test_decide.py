from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partrain.errors import Fault, InfeasibleError, SpecError
from partrain.model.shape import parameters
from partrain.plan.plan import Plan
from partrain.plan.resolved import leaves, resolved_job
from partrain.spec.catalog import node
from partrain.spec.facts import DatasetFacts
from tests.plan.jobs import BYTES, DEMO, planned, read


def faults(*args: str, **kwargs: Any) -> dict[str, Fault]:
    """Faults of a job that is refused, by path."""
    with pytest.raises(SpecError) as caught:
        planned(*args, **kwargs)
    return {fault.path: fault for fault in caught.value.faults}


def test_the_demo_is_two_stages_of_two_shards() -> None:
    plan = planned()
    layout = plan.layout
    assert (layout.dp, layout.pp, layout.tp, layout.world_size) == (1, 2, 2, 4)
    assert layout.stage_bounds == (0, 3, 6)
    assert (layout.micro_batch_size, layout.num_micro_batches) == (4, 8)
    assert (plan.training.steps, plan.training.precision) == (120, "fp32")


def test_stages_hold_every_layer_and_the_whole_models_parameters() -> None:
    plan = planned(DEMO, "parallel.tp=1")
    assert [(stage.first, stage.last) for stage in plan.stages] == [(0, 2), (3, 5)]
    assert sum(stage.parameters for stage in plan.stages) == plan.parameters == parameters(plan.model)


def test_a_tied_head_is_held_once_more_on_the_last_stage() -> None:
    plan = planned(DEMO, "model.preset=tiny-gpt", "parallel.tp=1")
    assert sum(stage.parameters for stage in plan.stages) == plan.parameters + 256 * 128


def test_deepspeed_gets_the_plans_batch() -> None:
    config = planned().deepspeed
    assert config["train_batch_size"] == 32
    assert config["train_micro_batch_size_per_gpu"] == 4
    assert config["gradient_accumulation_steps"] == 8


@pytest.mark.parametrize(
    ("tokens", "steps"),
    [("4096", 1), ("4097", 2), ("4.096e5", 100), ("1e9", 244141)],  # 32 x 128 = 4096 tokens a step
)
def test_tokens_are_rounded_up_to_whole_steps(tokens: str, steps: int) -> None:
    plan = planned(DEMO.replace("steps: 120", f"tokens: {tokens}"))
    assert plan.training.steps == steps
    assert plan.origins["training.steps"].startswith("training.tokens / ")


def test_the_plan_round_trips_through_json() -> None:
    plan = planned()
    assert Plan.from_json(plan.to_json()) == plan


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ('"seed": 1', '"seed": 1.0', "training.seed: wrong"),
        ('"seed": 1', '"seed": NaN', "NaN is no number"),
        ('"seed": 1', '"seed": 1, "step_s": 2', "training.step_s: unknown"),
        ('"eps": 1e-08', '"eps": 1e999', "1e999 is no number"),
        ('"dp": 1', '"dp": true', "layout.dp: wrong"),
        ('"pp": 2', '"pipes": 2', "layout.pipes: unknown; layout.pp: missing"),
        ('"vocab_size": 256', '"vocab_size": null', "model.vocab_size: wrong"),
        ('"last": 5', '"last": -5', "stages.1.last: wrong"),
        ('"name": "demo"', '"name": "../demo"', "name: wrong"),
        ('"env": {}', '"env": {"A-B": "x"}', "env.A-B: wrong key"),
    ],
)
def test_a_plan_that_was_changed_to_something_else_is_refused(right: str, wrong: str, said: str) -> None:
    text = planned().to_json()
    assert right in text
    with pytest.raises(ValueError, match=f"^{said}$"):
        Plan.from_json(text.replace(right, wrong, 1))


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "Expecting value"), ("[]", "all: wrong"), ("{}", "stages: missing"), ("[" * 100_000, "too deeply")],
)
def test_what_is_no_plan_is_refused(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Plan.from_json(text)


@given(
    st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2, 3, 5]),
    st.sampled_from([1, 2]),
    st.sampled_from(["tiny", "tiny-gpt"]),
    st.sampled_from(["fp32", "bf16"]),
)
def test_the_same_job_gives_the_same_bytes_which_give_the_same_plan(
    dp: int, pp: int, tp: int, preset: str, precision: str
) -> None:
    overrides = (
        f"parallel.dp={dp}",
        f"parallel.pp={pp}",
        f"parallel.tp={tp}",
        f"model.preset={preset}",
        f"training.precision={precision}",
        "training.global_batch_size=24",
    )
    first, second = planned(DEMO, *overrides), planned(DEMO, *overrides)
    assert first.to_json() == second.to_json()
    assert Plan.from_json(first.to_json()) == first
    assert all(low < high for low, high in pairwise(first.layout.stage_bounds))


def test_every_value_of_the_resolved_job_has_an_origin() -> None:
    job, plan = read().job, planned()
    assert job is not None
    view = dict(leaves(resolved_job(job, plan)))
    assert set(view) == set(plan.origins)
    assert "auto" not in view.values()


def test_origins_tell_given_preset_default_auto_and_machine_apart() -> None:
    origins = planned(DEMO, "training.steps=50").origins
    assert origins["training.sequence_length"] == "job.yaml:5"
    assert origins["training.steps"].startswith("--set")
    assert origins["model.num_layers"] == "preset tiny"
    assert origins["model.norm"] == "default of family llama"
    assert origins["training.optimizer.lr"] == "default"
    assert origins["parallel.dp"].startswith("auto: ")
    assert origins["hardware.node"] == "this machine"


@pytest.mark.parametrize(
    ("name", "lr", "decay"), [("adamw", 3e-4, 0.1), ("lion", 1e-4, 0.3), ("muon", 3e-4, 0.1)]
)
def test_an_optimizer_has_its_own_defaults(name: str, lr: float, decay: float) -> None:
    plan = planned(DEMO, f"training.optimizer.name={name}")
    wish = plan.training.optimizer
    assert (wish.lr, wish.weight_decay) == (lr, decay)
    assert (wish.eps is None, wish.momentum is None) == (name == "lion", name != "muon")
    assert plan.origins["training.optimizer.lr"] == "default"
    assert ("training.optimizer.momentum" in plan.origins) == (name == "muon")


def test_the_section_of_fp16_is_written_out() -> None:
    options = ("hardware.node=8xh100", "training.precision=fp16")
    plan = planned(DEMO, *options)
    # Micikevicius et al. 2018, section 3.2, in DeepSpeed's words; its defaults, none left to it.
    assert plan.deepspeed["fp16"] == {
        "enabled": True,
        "auto_cast": False,
        "loss_scale": 0,
        "initial_scale_power": 16,
        "loss_scale_window": 1000,
        "hysteresis": 2,
        "consecutive_hysteresis": False,
        "min_loss_scale": 1,
        "fp16_master_weights_and_grads": False,
    }
    assert plan.deepspeed["data_types"] == {"grad_accum_dtype": "fp32"}
    assert plan.deepspeed["communication_data_type"] == "fp32"
    assert planned(DEMO, *options, "training.loss_scale=512").deepspeed["fp16"]["loss_scale"] == 512


def test_an_auto_that_is_written_is_explained_like_one_that_is_left_out() -> None:
    written, left_out = planned(DEMO, "parallel.dp=auto"), planned()
    assert written.origins["parallel.dp"] == left_out.origins["parallel.dp"]


def test_a_list_of_the_job_has_the_origin_of_its_parts() -> None:
    assert planned(DEMO + "hardware: {nodes: 1}\n").origins["hardware.nodes"] == "job.yaml:7"
    text = DEMO.replace("steps: 120", "steps: 120, optimizer: {betas: [0.9, 0.99]}")
    assert planned(text).origins["training.optimizer.betas"] == "job.yaml:5"


def test_the_resolved_job_shows_what_was_decided() -> None:
    job, plan = read().job, planned()
    assert job is not None
    view = resolved_job(job, plan)
    assert view["parallel"] == {
        "dp": 1,
        "pp": 2,
        "tp": 2,
        "sequence_parallel": True,
        "zero": 1,
        "offload": "none",
    }
    assert view["model"]["preset"] == "tiny"
    assert view["model"]["hidden_size"] == 128
    assert view["hardware"] == {"nodes": 1, "node": "cpu", "memory_budget": 0.92}


def test_the_jobs_node_replaces_this_machine() -> None:
    plan = planned(DEMO, "hardware.node=dgx-h100")
    assert (plan.machine.name, plan.machine.num_devices) == ("h100", 8)
    assert plan.training.precision == "bf16"
    assert "4 of 8 devices stay idle; dp: 2 would use 8" in plan.notes


def test_an_unknown_node_hides_no_other_fault_and_makes_none() -> None:
    found = faults(DEMO, "hardware.node=8xh10", "parallel.tp=3")
    assert set(found) == {"hardware.node", "parallel.tp"}
    assert "8xh100" in found["hardware.node"].fix
    assert len(found) == 2


def test_auto_degrees_are_said_to_be_the_simplest() -> None:
    assert planned().notes[0].startswith("auto took the simplest legal degrees: dp 1;")


def test_all_faults_of_job_data_model_and_layout_come_together_in_order_of_place() -> None:
    text = (
        DEMO.replace("steps: 120", "steps: -1")
        .replace("tp: 2", "tp: 3")
        .replace("tiny}", "tiny, num_heads: 6}")
    )
    missing = Fault("data.train", "no such file")
    with pytest.raises(SpecError) as caught:
        planned(text, data=None, data_faults=(missing,))
    assert [fault.path for fault in caught.value.faults] == [
        "model.num_heads",
        "data.train",
        "training.steps",
    ]
    assert [fault.place and fault.place.line for fault in caught.value.faults] == [3, 4, 5]


def test_a_reason_stands_at_the_first_of_its_paths_that_was_given() -> None:
    fault = faults(DEMO, "parallel.dp=3")["parallel.dp"]
    assert fault.place is not None
    assert str(fault.place).startswith("--set")
    fault = faults(DEMO, "training.micro_batch_size=5")["training.micro_batch_size"]
    assert fault.fix == "global_batch_size: 30 or 35; or micro_batch_size: 4 or 8"


def test_a_faulty_value_causes_no_second_fault() -> None:
    assert set(faults(DEMO.replace("pp: 2", "pp: two"))) == {"parallel.pp"}
    assert set(faults(DEMO.replace("preset: tiny", "preset: 3"))) == {"model.preset"}


def test_data_that_could_not_be_read_causes_no_fault_of_the_vocabulary() -> None:
    text = DEMO.replace("preset: tiny", "num_layers: 2, hidden_size: 64, num_heads: 4")
    assert set(faults(text, data=None, data_faults=(Fault("data.train", "no such file"),))) == {"data.train"}


def test_the_vocabulary_may_come_from_the_data() -> None:
    text = DEMO.replace("preset: tiny", "num_layers: 2, hidden_size: 64, num_heads: 4")
    plan = planned(text)
    assert plan.model.vocab_size == 256
    assert plan.origins["model.vocab_size"] == "data"


def test_data_must_hold_a_sequence_and_the_token_after_it() -> None:
    exact = replace(BYTES, num_tokens=129)
    assert planned(data=exact).data.num_tokens == 129
    short = replace(BYTES, num_tokens=128)
    fault = faults(data=short)["data.train"]
    assert fault.message == "128 tokens are too few for a sequence of 128 and the token after it"
    assert fault.fix == "sequence_length: 127"


def test_endless_data_is_never_too_short() -> None:
    endless = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
    assert planned(data=endless).model.vocab_size == 256


def test_the_datas_vocabulary_must_fit() -> None:
    wide = replace(BYTES, vocab_size=50257)
    assert "50257" in faults(data=wide)["data.train"].message


def test_a_warm_up_longer_than_the_tokens_last_is_refused() -> None:
    text = DEMO.replace("steps: 120", "tokens: 4.096e4, schedule: {warmup_steps: 10}")
    fault = faults(text)["training.schedule.warmup_steps"]
    assert fault.message == "warmup_steps=10 is not less than the 10 steps that tokens=40960 make"


def test_an_auto_with_nothing_legal_left_is_infeasible() -> None:
    text = DEMO.replace("parallel: {pp: 2, tp: 2}", "parallel: {sequence_parallel: true}")
    assert planned(text).layout.tp == 2
    with pytest.raises(InfeasibleError) as caught:
        planned(text, machine=node("1xh100"))
    assert caught.value.exit_code == 3


def test_given_values_that_contradict_are_no_case_of_infeasible() -> None:
    with pytest.raises(SpecError) as caught:
        planned(DEMO, "parallel.sequence_parallel=true", "parallel.tp=1")
    assert caught.value.exit_code == 2


def test_a_missing_dataset_without_a_fault_is_a_misuse() -> None:
    with pytest.raises(ValueError, match="without a fault"):
        planned(data=None)


JOBS = sorted((Path(__file__).parents[2] / "jobs").glob("*.yaml"))


@pytest.mark.parametrize("path", JOBS, ids=lambda path: path.stem)
def test_every_job_that_is_shipped_has_a_plan(path: Path) -> None:
    tokens = DatasetFacts(source="tokens", num_tokens=10**12, vocab_size=256)
    plan = planned(path.read_text(encoding="utf-8"), data=tokens)
    assert plan.layout.global_batch_size == plan.deepspeed["train_batch_size"]
