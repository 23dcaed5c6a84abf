"""What each finding rests on, and what the certificate says of it."""

from __future__ import annotations

from collections.abc import Mapping

from molprof.analysis.figures.certificate.model import Certificate, Group

# Groups of figures behind the evidence and the gain of each finding. A test compares the ids with the rules.
RESTS_ON: Mapping[str, tuple[Group, ...]] = {
    "launch_bound": ("gpu_idle", "links"),
    "graphs_unused": ("gpu_idle", "links", "steps", "graphs"),
    "graphs_broken": ("gpu_idle", "links", "steps", "graphs"),
    "gpu_idle": ("gpu_idle",),
    "processor_share": ("host_time",),
    "row_masking": ("host_time",),
    "processor_syncs": ("host_time", "gpu_idle"),
    "vocabulary_copies": ("gpu_time", "links", "steps"),
    "cache_concatenation": ("gpu_time", "links", "host_time"),
    "attention_small": ("gpu_work", "gpu_time"),
    "mask_rules_out_flash": ("gpu_work", "gpu_time"),
    "compiling": ("host_time",),
    "idle_rows": (),  # this and the next two: the manifest alone
    "junk_tokens": (),
    "templates": (),
    "host_copies": ("gpu_work", "links", "steps"),
    "profiler_cost": ("host_time",),
}


def doubts_about(certificate: Certificate | None, finding: str) -> str | None:
    """Why a finding rests on uncertain figures; None where they are exact."""
    if certificate is None:
        return None
    groups = [item for item in certificate.uncertain if item.group in RESTS_ON.get(finding, ())]
    return "; ".join(f"{item.title}: {item.reason}" for item in groups) or None
