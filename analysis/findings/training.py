"""Findings on training steps besides forward and backward: zeroing of gradients, and the optimizer."""

from __future__ import annotations

from molprof.analysis.findings.inside import Inside, inside
from molprof.analysis.findings.known import HOST_CAUSES, TraceFacts
from molprof.analysis.findings.rule import FindingEvidence, rule
from molprof.analysis.findings.work import gpu_share, is_named
from molprof.common.values import count_text, counted, number_text, percent_text, time_text

_WAITING = (*HOST_CAUSES, "launching")
# Names of kernels, in lower case, that take many tensors at once, and of those that do a whole step of an optimizer.
_MANY_TENSORS = ("*multi_tensor_apply*", "*multitensorapply*")
_FUSED = ("*fused*mathfunctor*", "*fusedadam*", "*fusedsgd*", "*fusedadagrad*", "*adamfunctor*", "*lamb*functor*")
# With fewer kernels per step, a loop over tensors is no matter.
_LEAST_KERNELS = 20


def optimizer_work(known: TraceFacts) -> Inside | None:
    """Return the calls and work inside steps of optimizers; None where none is recorded."""
    return inside(known, ("Optimizer.step#*",), ("*torch/optim/*(*): step",))


def zeroing(known: TraceFacts) -> Inside | None:
    """Return the calls and work while gradients are set to zero; None where that is not recorded."""
    functions = ("*torch/optim/*(*): zero_grad", "*torch/nn/modules/module.py(*): zero_grad")
    return inside(known, ("Optimizer.zero_grad#*",), functions)


def _costs(known: TraceFacts, calls: Inside) -> tuple[dict[str, int], float, tuple[str, ...]]:
    """Return kernels launched in these calls as figures, their share of the time, and the location of the calls."""
    count, gpu_ns = calls.work_ns(known)
    gaps, idle_ns = calls.idle_ns(known, _WAITING)
    scope = known.scope
    # Without its calls, the CPU is earlier by its own time and no more.
    saved_ns = min(idle_ns, calls.host_ns * scope.devices)
    figures = {"kernels": count, "gpu_ns": gpu_ns, "gaps": gaps, "idle_ns": idle_ns, "host_ns": calls.host_ns}
    share = scope.idle_part(saved_ns) + gpu_share(known, gpu_ns)
    return figures, share, ("launch_bound",) if idle_ns >= gpu_ns else ()


def _waited(known: TraceFacts, idle_ns: int) -> str:
    all_ns = sum(part.time_ns for part in known.idle if not part.is_long and part.cause in _WAITING)
    return f"the GPU waits {time_text(idle_ns)} for them to be launched, of {time_text(all_ns)} for all launches"


@rule(
    id="zero_grad",
    title="Gradients are set to zero by kernels",
    fix="zero_grad(set_to_none=True), the default since torch 2.0. backward then writes gradients instead of adding.",
    explanation="A kernel for each parameter writes zeros, to which backward adds what it could have written.",
    query="SELECT name, ts, dur FROM slice WHERE name GLOB '*zero_grad*' ORDER BY ts",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "gpu_time", "links"),
)
def zero_grad(known: TraceFacts) -> FindingEvidence | None:
    """Fire where kernels or memsets are launched in `zero_grad` of an optimizer or a module.

    Gain: the short gaps that end with one of them, but no more than the host's time in `zero_grad`, and their GPU time.
    """
    if (calls := zeroing(known)) is None:
        return None
    figures, share, part_of = _costs(known, calls)
    if not (count := figures["kernels"]):
        return None
    return FindingEvidence(
        f"{counted(count, 'kernel')} and memsets in {counted(calls.count, 'call')}, {time_text(figures['host_ns'])} on "
        f"the CPU and {time_text(figures['gpu_ns'])} on the GPU; {_waited(known, figures['idle_ns'])}",
        {**figures, "calls": calls.count},
        known.gain(share, "gaps before these kernels, and their GPU time"),
        location=calls.names[0],
        part_of=part_of,
    )


@rule(
    id="optimizer_loop",
    title="The optimizer does its step in many kernels",
    fix="Use fused=True, one kernel for many tensors and all of a step; foreach=True where an optimizer has none.",
    explanation="Each kernel of a step works on its own tensors; only a kernel for many tensors joins them.",
    query="SELECT name, ts, dur FROM slice WHERE name GLOB 'Optimizer.step#*' OR name GLOB '*): step' ORDER BY ts",
    needs=("gpu", "launches"),
    rests_on=("gpu_idle", "gpu_time", "links"),
    least_gain=0.02,
    weight=0.6,
)
def optimizer_loop(known: TraceFacts) -> FindingEvidence | None:
    """Fire where a step of an optimizer launches 20 kernels or more, and most are not of a fused optimizer.

    Gain: the short gaps that end with one of them, but no more than the host's time in the step, and their GPU time.
    """
    if (calls := optimizer_work(known)) is None:
        return None
    figures, share, part_of = _costs(known, calls)
    count, names = figures["kernels"], known.facts.name_of[calls.work(known)]
    if count < _LEAST_KERNELS * calls.count:
        return None
    is_many, is_fused = (
        [name.category == "kernel" and is_named(name.name, patterns) for name in known.facts.names]
        for patterns in (_MANY_TENSORS, _FUSED)
    )
    fused, many = (sum(is_one[number] for number in names.tolist()) for is_one in (is_fused, is_many))
    if 2 * fused >= len(names):
        return None
    gpu_ns = figures["gpu_ns"]
    how = "each for many tensors" if 2 * many >= len(names) else "most for one tensor each"
    return FindingEvidence(
        f"{count_text(count)} kernels in {counted(calls.count, 'step')}, {number_text(count / calls.count)} each, "
        f"{how}: {time_text(gpu_ns)} on the GPU, {percent_text(gpu_share(known, gpu_ns))} of the time; "
        f"{_waited(known, figures['idle_ns'])}",
        {**figures, "steps": calls.count},
        known.gain(share, "gaps before these kernels, and their GPU time"),
        location=calls.names[0],
        part_of=part_of,
    )
