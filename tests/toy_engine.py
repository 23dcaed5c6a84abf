"""An engine as a newcomer writes it: a greedy loop that forwards whole texts, without a cache."""

from __future__ import annotations

import torch

from molprof.common.settings import CaptureSettings
from molprof.profiler.constraints.base import BatchProcessor
from molprof.profiler.engines import BatchPlan, BatchResult
from molprof.profiler.models.load import LoadedModel
from molprof.profiler.recording.marks import Marks


class Toy:
    def __init__(self, loaded: LoadedModel, settings: CaptureSettings) -> None:
        self._loaded = loaded

    @torch.no_grad()
    def generate(self, number: int, plan: BatchPlan, studied: BatchProcessor | None, marks: Marks) -> BatchResult:
        loaded, ends = self._loaded, self._loaded.eos
        with marks.setup("tokenize", number):
            texts = [prompt.text for prompt in plan.row_prompts]
            given = loaded.tokenizer(texts, padding="max_length", max_length=plan.prompt_width, padding_side="left")
            ids, mask = (torch.tensor(given[name]) for name in ("input_ids", "attention_mask"))
        rows: list[list[int]] = [[] for _ in texts]
        marks.begin(number)
        for _ in range(plan.max_new_tokens):
            marks.forward()
            places = (mask.cumsum(-1) - 1).clamp(min=0)
            scores = loaded.model(ids, attention_mask=mask, position_ids=places).logits[:, -1].float()
            marks.processor()
            scores = scores if studied is None else studied(ids, scores)
            marks.sampling()
            chosen = scores.argmax(-1)
            ids, mask = torch.cat((ids, chosen[:, None]), 1), torch.cat((mask, torch.ones_like(chosen[:, None])), 1)
            marks.bookkeeping()
            for row, token in zip(rows, chosen.tolist(), strict=True):
                if not row or row[-1] not in ends:
                    row.append(token)
            if marks.enough() or all(row[-1] in ends for row in rows):
                break
        marks.end()
        return BatchResult(tuple(map(tuple, rows[: len(plan.prompts)])), (plan.rows,) * max(map(len, rows)))
