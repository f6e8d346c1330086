"""partrain: a job file becomes a parallel training run on DeepSpeed."""

__version__ = "0.1.0"
