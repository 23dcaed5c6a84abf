"""Training of a preset's tiny model: seeded, and resumable."""

from __future__ import annotations

import json
import math
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel, PreTrainedTokenizerFast

from molprof.common.files import replacing
from molprof.common.text_format import DEFAULT
from molprof.profiler.models.architecture import ARCHITECTURES, build, config
from training.checkpoint import CompactVocabulary
from training.corpus import Example, Sample, example

_SAVE_EVERY = 250


@dataclass(frozen=True)
class Settings:
    """Settings of a training run; stored beside the weights."""

    preset: str
    steps: int = 6000
    decay_steps: int = 1500  # the last ones, over which the learning rate falls linearly to zero
    batch_tokens: int = 3072  # per batch, padding included
    short_steps: int = 500  # the first ones, on molecules of at most `short_atoms` atoms
    short_atoms: int = 7
    coarse_steps: int = 2000  # the first ones, with one decimal per coordinate: short sequences teach copying sooner
    warmup_steps: int = 100
    matrix_rate: float = 0.01  # learning rate of Muon (hidden matrices)
    other_rate: float = 0.003  # learning rate of AdamW (embeddings and norms)
    weight_decay: float = 0.01
    seed: int = 0  # of weights, order and augmentation


def train(
    settings: Settings, samples: list[Sample], tokenizer: PreTrainedTokenizerFast, folder: Path
) -> tuple[PreTrainedModel, CompactVocabulary, int]:
    """Train to `settings.steps`, resuming the state in `folder`; the compact model, its vocabulary and steps taken.

    The output layer has one row per occurring token and one for all others. The loss raises that row's logit by
    log(number of others), so that the softmax is exactly that of the full vocabulary.
    """
    torch.manual_seed(settings.seed)
    architecture = ARCHITECTURES[settings.preset]
    vocabulary = _occurring(tokenizer, samples, architecture.logits_width)
    table = vocabulary.table()
    eos, pad = int(table[tokenizer.eos_token_id]), int(table[tokenizer.pad_token_id])
    model = build(config(architecture, vocabulary.rows, eos, pad)).float()
    _sharpen(model)
    matrices = [weight for name, weight in model.named_parameters() if weight.ndim == 2 and "embed" not in name]
    others = [weight for name, weight in model.named_parameters() if weight.ndim != 2 or "embed" in name]
    rates = (settings.matrix_rate, settings.other_rate)
    optimizers: list[torch.optim.Optimizer] = [
        torch.optim.Muon(matrices, lr=rates[0], weight_decay=settings.weight_decay, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(others, lr=rates[1], betas=(0.9, 0.95), weight_decay=0.0),
    ]
    state_file = folder / "state.pt"
    step = _resumed(state_file, model, optimizers)
    stop = threading.Event()

    def ask(number: int, frame: object) -> None:
        """End training at the first Ctrl-C or SIGTERM, after the current step, which is saved."""
        stop.set()
        signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, ask)
    log = (folder / "log.jsonl").open("a")
    batches = _batches(settings, samples, tokenizer, table, step)
    began, seen = time.perf_counter(), 0
    while step < settings.steps and not stop.is_set():
        rate = _rate(settings, step)
        for optimizer, base in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = base * rate
        ids, weights = next(batches)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            loss, copy_loss = _loss(model, ids, weights, math.log(vocabulary.full_size - len(vocabulary.ids)))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        step += 1
        seen += ids.numel()
        if step % 25 == 0:
            row = {
                "step": step,
                "loss": round(loss.item(), 4),
                "copy_loss": round(copy_loss.item(), 4),
                "rate": round(rate, 4),
                "tokens_per_s": round(seen / (time.perf_counter() - began)),
            }
            log.write(json.dumps(row) + "\n")
            log.flush()
            print(f"\r{settings.preset}: {row}", end="", file=sys.stderr, flush=True)
        if step % _SAVE_EVERY == 0 or step == settings.steps or stop.is_set():
            states = [optimizer.state_dict() for optimizer in optimizers]
            with replacing(state_file) as part:
                torch.save({"model": model.state_dict(), "optimizers": states, "step": step}, part)
    log.close()
    return model, vocabulary, step


def _occurring(tokenizer: PreTrainedTokenizerFast, samples: Iterable[Sample], full_size: int) -> CompactVocabulary:
    """Return the tokens that the samples need, plus every number of up to three digits that is one token."""
    used: set[int] = set(tokenizer.get_added_vocab().values())
    vocabulary = tokenizer.get_vocab()
    used |= {index for text, index in vocabulary.items() if text.isascii() and text.isdigit()}
    for sample in samples:
        for decimals in (1, 4):
            text = DEFAULT.prompt_of(sample.molecule.smiles) + DEFAULT.answer_of(sample.conformer(decimals))
            used.update(tokenizer(text, add_special_tokens=False)["input_ids"])
    return CompactVocabulary(tuple(sorted(used)), full_size)


def _sharpen(model: PreTrainedModel) -> None:
    """Start LLaMA's query and key projections with attention logits of about unit spread, as Qwen3's norms do.

    With transformers' 0.02 the spread is below 0.1, and the model learns to copy only after thousands of steps.
    """
    if model.config.model_type == "llama":
        for name, weight in model.named_parameters():
            if name.endswith(("q_proj.weight", "k_proj.weight")):
                torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)


def _rate(settings: Settings, step: int) -> float:
    """Warm-up, constant, linear decay (the trapezoid of Haegele et al. 2024, arXiv:2405.18392)."""
    up = min(1.0, (step + 1) / settings.warmup_steps)
    down = min(1.0, (settings.steps - step) / settings.decay_steps)
    return up * down


def _loss(model: PreTrainedModel, ids: Tensor, weights: Tensor, unused_log: float) -> tuple[Tensor, Tensor]:
    """Weighted next-token loss; ids int64 (B, T), weights float32 (B, T), 0 where padded."""
    logits = model(input_ids=ids[:, :-1], use_cache=False).logits
    logits = torch.cat((logits[..., :-1], logits[..., -1:] + unused_log), dim=-1)
    losses = functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none")
    targets = weights[:, 1:].flatten()
    copies = targets > 2
    return (losses * targets).sum() / targets.sum(), losses[copies].mean().detach()


def _batches(
    settings: Settings,
    samples: list[Sample],
    tokenizer: PreTrainedTokenizerFast,
    table: np.ndarray,
    step: int,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Endless batches of similar length from `step` on; right-padded, so causal attention needs no mask."""
    rng = random.Random(f"{settings.seed}-{step}")
    pad = int(table[tokenizer.pad_token_id])
    short = [sample for sample in samples if len(sample.molecule.atoms) <= settings.short_atoms]
    while True:
        pool = short if step < settings.short_steps else samples
        decimals = 1 if step < settings.coarse_steps else 4
        chosen = [example(rng.choice(pool), tokenizer, table, decimals, rng) for _ in range(256)]
        chosen.sort(key=lambda item: len(item.ids))
        groups = list(_groups(chosen, settings.batch_tokens))
        rng.shuffle(groups)
        for group in groups:
            ids = pad_sequence([torch.from_numpy(item.ids) for item in group], True, pad)
            yield ids, pad_sequence([torch.from_numpy(item.weights) for item in group], True)
            step += 1


def _groups(examples: list[Example], batch_tokens: int) -> Iterator[list[Example]]:
    """Yield groups of at most `batch_tokens` padded tokens, of examples sorted by length."""
    group: list[Example] = []
    for item in examples:
        if group and len(item.ids) * (len(group) + 1) > batch_tokens:
            yield group
            group = []
        group.append(item)
    if group:
        yield group


def _resumed(path: Path, model: PreTrainedModel, optimizers: list[torch.optim.Optimizer]) -> int:
    """Load the saved state if there is one; steps taken so far."""
    if not path.exists():
        return 0
    state = torch.load(path, weights_only=True)
    model.load_state_dict(state["model"])
    for optimizer, saved in zip(optimizers, state["optimizers"], strict=True):
        optimizer.load_state_dict(saved)
    return int(state["step"])
