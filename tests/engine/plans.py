"""Plans of tiny decoders under every kind of layout."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from partrain.layout.layout import Layout
from partrain.layout.rules import OFFLOADS
from partrain.layout.stages import balanced_bounds
from partrain.model.shape import flops_per_token, layer_flops, parameters, rank_parameters
from partrain.plan.ds_config import deepspeed_config
from partrain.plan.plan import EvaluationPlan, Plan, StagePlan, TrainingPlan
from partrain.spec.checkpoint import CheckpointSection
from partrain.spec.facts import DatasetFacts, MachineFacts
from partrain.spec.guard import GuardSection
from partrain.spec.model import ModelSpec
from partrain.spec.optimizers import OptimizerSection, resolve_optimizer
from partrain.spec.training import BatchRampSection, ScheduleSection

SEQUENCE, GLOBAL_BATCH = 16, 24
EVALUATED = 11  # a prime: under every layout some micro-batch has to be filled up
# At 1e-2 rounding to bf16 alone moves the plain loop's own losses by 4e-3 in ten steps.
LR = {"fp32": 1e-2, "bf16": 1e-3, "fp16": 1e-3}
# A tenth for lion, all of whose updates are of size one.
LR_FACTOR = {"adamw": 1.0, "lion": 0.1, "muon": 1.0}
CPU = MachineFacts(
    device="cpu",
    name="cpu",
    num_devices=2,
    memory_bytes=None,
    bf16_flops=None,
    fp32_flops=None,
    origin="test",
)
SYNTHETIC = DatasetFacts(source="synthetic", num_tokens=None, vocab_size=None)
FIRST_HELD_BACK = 10**6
SIZES: dict[str, Any] = {
    "num_layers": 7,
    "hidden_size": 32,
    "num_heads": 8,
    "head_size": 8,
    "mlp_size": 64,
    "vocab_size": 61,
    "max_positions": 64,
    "norm_eps": 1e-5,
    "rope_theta": 1e4,
    "rope_scaling": None,
    "init_std": 0.05,
}
PLAIN: dict[str, Any] = {
    "zero_centered_norm": False,
    "qk_norm": False,
    "block": "sequential",
    "sliding_window": None,
    "rotary_fraction": 1.0,
    "qkv_bias": False,
    "scale_embeddings": False,
}
LLAMA = {**PLAIN, "norm": "rmsnorm", "activation": "swiglu", "position": "rotary", "bias": False}
GPT2 = {
    **PLAIN,
    "norm": "layernorm",
    "activation": "gelu_tanh",
    "position": "learned",
    "bias": True,
    "qkv_bias": True,
}
SHAPES: dict[str, dict[str, Any]] = {
    "llama": LLAMA,
    "gpt2": GPT2,
    # the biases of qwen2 and the window of mistral with it
    "qwen3": {**LLAMA, "qk_norm": True, "qkv_bias": True, "sliding_window": 5},
    "gemma": {**LLAMA, "activation": "geglu_tanh", "zero_centered_norm": True, "scale_embeddings": True},
    "gpt_neox": {
        **GPT2,
        "activation": "gelu",
        "block": "parallel",
        "position": "rotary",
        "rotary_fraction": 0.5,
    },
}
STOP_AND_WARN = GuardSection()
KNOBS: dict[str, tuple[Any, ...]] = {
    "recompute": ("none", "selective", "full"),
    "tied": (False, True),
    "several": (False, True),
    "shape": tuple(SHAPES),
    "chunk_size": ("none", 7),  # no micro-batch has a multiple of 7 tokens
    "shaped": (False, True),
    "dropout": (0.0, 0.1),
}
"""What a layout leaves open; `several` micro-batches, a `shaped` loss."""


@dataclass(frozen=True)
class Case:
    """A layout and the other knobs."""

    dp: int = 1
    pp: int = 1
    tp: int = 1
    zero: int = 1
    sequence_parallel: bool = False
    recompute: str = "none"
    tied: bool = False
    num_micro_batches: int = 1
    shape: str = "llama"
    precision: str = "fp32"
    bounds: tuple[int, ...] = ()
    grad_clip: float = 1.0
    chunk_size: int | str = "none"
    label_smoothing: float = 0.0
    z_loss: float = 0.0
    steps: int = 3
    offload: str = "none"
    guard: GuardSection = STOP_AND_WARN
    ramp: tuple[int, int, int] | None = None
    """Start, increment and samples."""
    optimizer: str = "adamw"
    scale_power: int = 10
    """Of two, the first loss scale (fp16)."""
    least_power: int = 0
    static_scale: bool = False
    dropout: float = 0.0
    attention_dropout: float = 0.0
    compile: bool = False
    evaluate: int = EVALUATED
    """Sequences of the evaluation after step 2; 0: there is none."""
    num_layers: int = SIZES["num_layers"]
    vocab_size: int = SIZES["vocab_size"]
    hidden_size: int = SIZES["hidden_size"]
    sabotage: str = ""

    @property
    def world_size(self) -> int:
        return self.dp * self.pp * self.tp

    def __str__(self) -> str:
        names = [
            f"dp{self.dp}",
            f"pp{self.pp}",
            f"tp{self.tp}",
            f"zero{self.zero}",
            self.shape,
            self.precision,
        ]
        names += ["sp"] * self.sequence_parallel + ["tied"] * self.tied + [self.recompute]
        names += [f"micro{self.num_micro_batches}", f"steps{self.steps}"] + ["uneven"] * bool(self.bounds)
        names += ["unclipped"] * (not self.grad_clip) + [f"offload_{self.offload}"] * (self.offload != "none")
        names += [f"chunk{self.chunk_size}"] + ["shaped"] * bool(self.label_smoothing or self.z_loss)
        names += [self.optimizer] * (self.optimizer != "adamw")
        names += [f"scale{self.scale_power}"] * (self.precision == "fp16") + ["static"] * self.static_scale
        names += ["dropout"] * bool(self.dropout) + ["attention_dropout"] * bool(self.attention_dropout)
        names += ["compiled"] * self.compile
        names += ["ramp"] * bool(self.ramp) + ["unevaluated"] * (not self.evaluate)
        return "-".join(names + [self.sabotage.replace(" ", "_")] * bool(self.sabotage))


def plan_of(case: Case) -> Plan:
    # Eight tensor shards need eight key-value heads; elsewhere two query heads share one.
    heads = 8 if case.tp == 8 else 4
    sizes = {**SIZES, "num_layers": case.num_layers, "vocab_size": case.vocab_size}
    sizes |= {"hidden_size": case.hidden_size, "mlp_size": 2 * case.hidden_size}
    model = ModelSpec(
        family=case.shape,
        num_kv_heads=heads,
        tie_embeddings=case.tied,
        dropout=case.dropout,
        attention_dropout=case.attention_dropout,
        **SHAPES[case.shape],
        **sizes,
    )
    layout = Layout(
        dp=case.dp,
        pp=case.pp,
        tp=case.tp,
        zero=case.zero,
        sequence_parallel=case.sequence_parallel,
        micro_batch_size=GLOBAL_BATCH // case.dp // case.num_micro_batches,
        num_micro_batches=case.num_micro_batches,
        recompute=case.recompute,
        stage_bounds=case.bounds or balanced_bounds(layer_flops(model, SEQUENCE), case.pp),
        offload=case.offload,
    )
    lr = LR[case.precision] * LR_FACTOR[case.optimizer]
    section = OptimizerSection(name=case.optimizer, lr=lr, grad_clip=case.grad_clip)
    training = TrainingPlan(
        sequence_length=SEQUENCE,
        steps=max(10, case.steps),
        precision=case.precision,
        loss_scale=2.0**case.scale_power if case.static_scale else "dynamic",
        loss_chunk_size=case.chunk_size,
        label_smoothing=case.label_smoothing,
        z_loss=case.z_loss,
        seed=3,
        optimizer=resolve_optimizer(section),
        schedule=ScheduleSection(warmup_steps=2),
        batch_ramp=None
        if case.ramp is None
        else BatchRampSection(start=case.ramp[0], increment=case.ramp[1], samples=case.ramp[2]),
        compile=case.compile,
    )
    stages = tuple(
        StagePlan(
            stage=stage,
            first=first,
            last=end - 1,
            parameters=rank_parameters(model, tp=case.tp, first=first, last=end - 1),
        )
        for stage, (first, end) in enumerate(zip(layout.stage_bounds, layout.stage_bounds[1:], strict=False))
    )
    largest = max(stage.parameters for stage in stages)
    deepspeed = deepspeed_config(training, layout, rank_parameters=largest, raw={})
    if case.precision == "fp16":
        deepspeed["fp16"] |= {
            "initial_scale_power": case.scale_power,
            "loss_scale_window": 2,
            "min_loss_scale": 2**case.least_power,
        }
    return Plan(
        version=1,
        partrain="test",
        name="test",
        model=model,
        data=SYNTHETIC,
        training=training,
        layout=layout,
        nodes=1,
        machine=CPU,
        memory_budget=0.92,
        stages=stages,
        parameters=parameters(model),
        flops_per_token=flops_per_token(model, SEQUENCE),
        guard=case.guard,
        deepspeed=deepspeed,
        env={},
        run_dir="runs",
        log_every=1,
        checkpoint=CheckpointSection(),
        origins={},
        notes=(),
        evaluation=EvaluationPlan(every=2, data=SYNTHETIC, first=FIRST_HELD_BACK, num_sequences=case.evaluate)
        if case.evaluate
        else None,
    )


def legal_layouts(largest_world: int) -> list[dict[str, Any]]:
    """Every legal (dp, pp, tp, ZeRO, sequence parallel) of the tiny decoder on at most so many processes."""
    degrees = range(1, largest_world + 1)
    return [
        {"dp": dp, "pp": pp, "tp": tp, "zero": zero, "sequence_parallel": split}
        for dp, pp, tp, zero, split in product(degrees, degrees, degrees, (0, 1, 2, 3), (False, True))
        if dp * pp * tp <= largest_world
        and GLOBAL_BATCH % dp == 0
        and pp <= SIZES["num_layers"] + 1
        and SIZES["num_heads"] % tp == 0
        and SEQUENCE % tp == 0
        and (zero == 1 or pp == 1)
        and (not split or tp > 1)
    ]


def _most_micro_batches(dp: int) -> int:
    return max(number for number in range(1, 7) if GLOBAL_BATCH // dp % number == 0)


def covering_cases(largest_world: int) -> list[Case]:
    """One case a legal layout, with the other knobs chosen so that every pair of values meets somewhere."""
    seen: set[tuple[tuple[str, Any], tuple[str, Any]]] = set()
    cases = []
    for layout in legal_layouts(largest_world):
        wider = {**layout, "dp": layout["dp"] > 1, "pp": layout["pp"] > 1, "tp": layout["tp"] > 1}
        best: tuple[int, dict[str, Any]] = (-1, {})
        offloads = [name for name, stages in OFFLOADS.items() if layout["zero"] in stages]
        for values in product(*KNOBS.values(), offloads):
            knobs = dict(zip((*KNOBS, "offload"), values, strict=True))
            new = len(set(pairs({**wider, **knobs})) - seen)
            best = max(best, (new, knobs), key=lambda item: item[0])
        knobs = best[1]
        seen |= set(pairs({**wider, **knobs}))
        knobs |= {"label_smoothing": 0.1, "z_loss": 1e-2} if knobs.pop("shaped") else {}
        number = _most_micro_batches(layout["dp"]) if knobs.pop("several") else 1
        steps = 10 if len(cases) % 8 == 7 else 3
        cases.append(Case(**layout, **knobs, num_micro_batches=number, steps=steps))
    return cases


def pairs(knobs: dict[str, Any]) -> list[tuple[tuple[str, Any], tuple[str, Any]]]:
    """Every two settings that meet in one case."""
    return list(combinations(sorted(knobs.items()), 2))
