"""The training: how long, how large the batches, which numbers, which optimizer."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from partrain.spec.optimizers import OptimizerSection
from partrain.spec.section import Auto, Count, Fraction, NonNegative, Positive, Share, Whole

Precision = Literal["fp32", "bf16", "fp16"]
Recompute = Literal["none", "selective", "full"]
ChunkSize = Count | Literal["none"]
LossScale = Positive | Literal["dynamic"]
AttentionKernel = Literal["torch", "flash", "efficient", "math"]


@dataclass(frozen=True, kw_only=True)
class ScheduleSection:
    """Learning rate over the steps."""

    name: Literal["cosine", "linear", "constant", "wsd", "inverse_sqrt"] = "cosine"
    """Course after the warm-up: half a cosine, a line, no decay, stable with a line at the end, or the
    inverse of the step's root."""
    warmup_steps: Whole = 0
    """Steps of linear warm-up from 0 to `optimizer.lr`."""
    min_lr: NonNegative = 0.0
    """Learning rate at the last step (cosine, linear, wsd), or the least there is (inverse_sqrt)."""
    decay_ratio: Share = 0.1
    """Part of the steps after the warm-up, the last ones, in which the rate falls (wsd)."""


@dataclass(frozen=True, kw_only=True)
class EvaluateSection:
    """The loss on `data.validation`, from time to time and after the last step."""

    every: Count | Auto = "auto"
    """Steps from one evaluation to the next; auto: 1000, or a tenth of a shorter training."""
    batches: Count | Literal["all"] | Auto = "auto"
    """Global batches of sequences that are evaluated, the same each time; all: the whole set; auto: of the
    set as much as one for every ten steps, which keeps evaluation near a thirtieth of the time."""


@dataclass(frozen=True, kw_only=True)
class BatchRampSection:
    """A global batch that rises, evenly over the sequences, to `global_batch_size`."""

    start: Count
    """Sequences of the first step."""
    increment: Count
    """Sequences by which a step grows at a time."""
    samples: Count
    """Sequences after which the whole batch is reached."""


@dataclass(frozen=True, kw_only=True)
class TrainingSection:
    """The `training` section."""

    sequence_length: Count
    """Tokens a sequence."""
    global_batch_size: Count
    """Sequences an optimizer step, over all replicas."""
    steps: Count | None = None
    """Optimizer steps; give this or `tokens`."""
    tokens: Positive | None = None
    """Tokens to train on, rounded up to whole steps; give this or `steps`."""
    micro_batch_size: Count | Auto = "auto"
    """Sequences a replica works on at once."""
    precision: Precision | Auto = "auto"
    """Number format of weights and activations; auto: bf16 on GPUs, fp32 on CPUs. Master weights,
    gradients and optimizer states are always fp32 (states of adamw8bit aside). fp16 is for GPUs."""
    loss_scale: LossScale = "dynamic"
    """Factor of the loss that keeps fp16 gradients from vanishing. dynamic: begins at 65536, is halved when a
    gradient overflows, whose step is then skipped, and doubled after 1000 steps without."""
    recompute: Recompute | Auto = "auto"
    """Activations computed again in the backward pass: none, the attention core, or whole blocks."""
    loss_chunk_size: ChunkSize | Auto = "auto"
    """Tokens of a micro-batch whose logits exist at once; none: all; auto: 2048 where the logits would take
    more memory than the last stage's blocks keep."""
    compile: bool | Auto = "auto"
    """Whether each block is compiled (torch.compile) at the first step, which needs a C compiler; auto: on
    GPUs, where ZeRO 3 and attention_dropout do not stand against it."""
    attention: AttentionKernel | Auto = "auto"
    """Kernel of the attention core; torch: the best of them for the shapes, as torch sees it; auto: torch."""
    tf32: bool = False
    """Whether fp32 matrix products on NVIDIA GPUs from Ampere on may round their factors to TF32's 10 bits:
    faster, and errors near 1e-3; the default keeps fp32 as it is."""
    prefetch: Whole = 2
    """Micro-batches that are read ahead of their use, in a thread; 0: none."""
    label_smoothing: Fraction = 0.0
    """Part of the target that is spread over the whole vocabulary; it is in the loss that is reported."""
    z_loss: NonNegative = 0.0
    """Factor of the mean squared logarithm of the softmax's denominator, which keeps logits small; it is in
    the loss that is reported."""
    seed: Whole = 1
    """Decides initial weights, data order and what dropout drops."""
    optimizer: OptimizerSection = field(default_factory=OptimizerSection)
    """The optimizer and its numbers."""
    schedule: ScheduleSection = field(default_factory=ScheduleSection)
    """The learning rate's course."""
    batch_ramp: BatchRampSection | None = None
    """Smaller steps at the beginning; left out: every step has `global_batch_size` sequences."""
    evaluate: EvaluateSection = field(default_factory=EvaluateSection)
    """When and on how much of `data.validation` the loss is measured."""
