"""What torch's own allocator says of a piece of work."""

from collections.abc import Callable

from torch.profiler import ProfilerActivity, profile


def allocator_bytes(work: Callable[[], object]) -> tuple[int, int]:
    """Most bytes beyond those at the start, and bytes more at the end; what `work` returns is held."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as found:
        kept = work()
    now = most = 0
    memory = [event for event in found.profiler.kineto_results.events() if event.name() == "[memory]"]
    for event in sorted(memory, key=lambda event: event.start_ns()):
        now += event.nbytes()
        most = max(most, now)
    del kept
    return most, now
