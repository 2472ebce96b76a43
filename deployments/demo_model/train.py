"""Training of the demo model: `python -m deployments.demo_model.train --out DIR`.

A step of 2,048 tokens takes about half a second of one core. On shared cores, set OMP_WAIT_POLICY=passive and
`--threads 1`. The result depends on the seed, and in the last bits on the machine; the check at the end decides. After
an edit of some answers, `--start-from DIR --steps 200 --rate 6e-4` continues from earlier weights.

The weights in the repository were continued in this way from earlier ones, which knew only answers: 1,000 steps with
`--new-tokenizer --rate 1.5e-3`, then about 1,700 steps with rates of 4e-4 to 8e-4, while the texts about tools changed,
and are the mean of three late ones: 0.15, 0.41 and 0.44 of them. A run from scratch was not made since then.
"""

from __future__ import annotations

import argparse
import copy
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeRemainingColumn
from tokenizers import Tokenizer
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM

from deployments.demo_model.batches import IGNORED, Packer
from deployments.demo_model.check import Recall, recall
from deployments.demo_model.corpus import Corpus
from deployments.demo_model.questions import Entry, load_entries
from deployments.demo_model.tokenizer import (
    BEGIN,
    END,
    MAX_POSITIONS,
    PAD,
    SPECIAL_TOKENS,
    VOCAB_SIZE,
    save_tokenizer,
    train_tokenizer,
)


@dataclass(frozen=True, slots=True)
class Plan:
    """Training plan."""

    seed: int = 7
    steps: int = 2000
    tokens_per_batch: int = 2048
    peak_rate: float = 3e-3
    warm_up_steps: int = 60
    weight_decay: float = 0.05
    threads: int = 2
    start_from: Path | None = None
    """Folder with the weights and tokenizer to continue from."""
    new_tokenizer: bool = True
    """Whether a tokenizer is trained, also where weights are continued."""

    check_every: int = 100
    """Steps between two checks of all answers, which also save. Each shifts the weight to answers not yet learnt."""


def model_config() -> LlamaConfig:
    """Return a Llama of 2.6 million parameters whose heads split evenly over two tensor-parallel ranks."""
    return LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=640,
        num_hidden_layers=3,
        num_attention_heads=8,
        num_key_value_heads=4,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=SPECIAL_TOKENS.index(BEGIN),
        eos_token_id=SPECIAL_TOKENS.index(END),
        pad_token_id=SPECIAL_TOKENS.index(PAD),
    )


def learning_rate(step: int, plan: Plan) -> float:
    """Return the rate of a step: a linear warm-up, then a cosine to a hundredth of the peak."""
    if step < plan.warm_up_steps:
        return plan.peak_rate * (step + 1) / plan.warm_up_steps
    done = (step - plan.warm_up_steps) / max(1, plan.steps - plan.warm_up_steps)
    return plan.peak_rate * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * done)))


def optimizer_for(model: torch.nn.Module, plan: Plan) -> torch.optim.AdamW:
    """Return an AdamW that decays matrices only."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [{"params": matrices, "weight_decay": plan.weight_decay}, {"params": vectors, "weight_decay": 0.0}]
    return torch.optim.AdamW(groups, lr=plan.peak_rate, betas=(0.9, 0.98), fused=True)


def train_model(
    entries: tuple[Entry, ...], corpus: Corpus, tokenizer: Tokenizer, plan: Plan, folder: Path, console: Console
) -> LlamaForCausalLM:
    """Train in float32 and return the model in evaluation mode. Each check also saves, so that a break loses little."""
    if plan.start_from is None:
        model = LlamaForCausalLM(model_config())
    else:
        model = continued(plan.start_from, tokenizer)
        results = recall(model, tokenizer, entries)
        reweight(corpus, results)
        console.print(f"start: {report(results)}")
    model.train()
    optimizer = optimizer_for(model, plan)
    packer = Packer(corpus, tokenizer, random.Random(plan.seed + 1), plan.tokens_per_batch)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("training", total=plan.steps)
        for step in range(plan.steps):
            loss = train_step(model, optimizer, packer, learning_rate(step, plan))
            progress.update(task, advance=1, description=f"loss {loss:.3f}")
            if (step + 1) % plan.check_every == 0:
                results = recall(model, tokenizer, entries)
                reweight(corpus, results)
                console.print(f"step {step + 1}, loss {loss:.3f}: {report(results)}")
                save_model(model, folder)
    return model.eval()


@torch.no_grad()
def continued(folder: Path, tokenizer: Tokenizer) -> LlamaForCausalLM:
    """Return earlier weights, fitted to a tokenizer. A token that theirs lacks begins as the mean of its pieces."""
    model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32)
    before = Tokenizer.from_file(str(folder / "tokenizer.json"))
    known, wanted = before.get_vocab(), tokenizer.get_vocab()
    if known == wanted:
        return model
    old = model.get_input_embeddings().weight.clone()
    model.resize_token_embeddings(len(wanted), mean_resizing=False)
    new = model.get_input_embeddings().weight
    for token, place in wanted.items():
        pieces = [known[token]] if token in known else before.encode(tokenizer.decode([place])).ids[1:]
        new[place] = old[pieces].mean(dim=0)
    return model


def train_step(model: LlamaForCausalLM, optimizer: torch.optim.Optimizer, packer: Packer, rate: float) -> float:
    """Run one optimizer step on one batch. Return its loss in nats per learnt token."""
    for group in optimizer.param_groups:
        group["lr"] = rate
    batch = packer.batch()
    labels = batch.labels[:, 1:]
    learnt = labels != IGNORED
    # Only half of the positions are learnt. The others need no logits.
    hidden = model.model(input_ids=batch.ids).last_hidden_state[:, :-1]
    loss = torch.nn.functional.cross_entropy(model.lm_head(hidden[learnt]), labels[learnt])
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


def reweight(corpus: Corpus, results: list[Recall], safe_margin: float = 1.0) -> None:
    """Show entries with an uncertain token three times as often, and entries with a wrong token six times as often."""
    margins = [math.inf] * len(corpus.weights)
    for result in results:
        if result.entry is not None:
            margins[result.entry] = min(margins[result.entry], result.margin)
    corpus.weights = [6.0 if margin <= 0 else 3.0 if margin < safe_margin else 1.0 for margin in margins]


def report(results: list[Recall]) -> str:
    """Return the share of exact answers per prompt format, and the smallest margin."""
    parts = []
    for form in dict.fromkeys(result.form for result in results):
        of_form = [result.exact for result in results if result.form == form]
        parts.append(f"{form} {sum(of_form)}/{len(of_form)}")
    margins = sorted(result.margin for result in results)
    spread = f"margin min {margins[0]:.2f}, 1st percentile {margins[len(margins) // 100]:.2f}"
    return f"exact {', '.join(sorted(parts))}; {spread}"


def save_model(model: LlamaForCausalLM, folder: Path) -> None:
    """Write the weights in bfloat16 with their configuration and greedy generation defaults. The model stays as it
    is.
    """
    model = copy.deepcopy(model)
    model.config.dtype = torch.bfloat16
    model.generation_config = GenerationConfig(
        bos_token_id=model.config.bos_token_id,
        eos_token_id=model.config.eos_token_id,
        pad_token_id=model.config.pad_token_id,
    )
    model.to(torch.bfloat16).save_pretrained(folder)


def parse_plan(arguments: list[str] | None = None) -> tuple[Plan, Path]:
    """Return the plan and the output folder that the command line asks for."""
    usual = Plan()
    parser = argparse.ArgumentParser(description="Train the Penstock demo model.")
    parser.add_argument("--out", type=Path, required=True, help="folder for the weights, created if needed")
    parser.add_argument("--steps", type=int, default=usual.steps, help="optimizer steps (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=usual.seed, help="seed of weights and data (default: %(default)s)")
    parser.add_argument("--rate", type=float, default=usual.peak_rate, help="peak learning rate (default: %(default)s)")
    parser.add_argument("--start-from", type=Path, default=None, help="folder of an earlier run to continue from")
    parser.add_argument("--new-tokenizer", action="store_true", help="train the tokenizer of that folder anew")
    parser.add_argument("--threads", type=int, default=usual.threads, help="CPU threads (default: %(default)s)")
    options = parser.parse_args(arguments)
    plan = Plan(
        seed=options.seed,
        steps=options.steps,
        peak_rate=options.rate,
        threads=options.threads,
        start_from=options.start_from,
        new_tokenizer=options.new_tokenizer or options.start_from is None,
    )
    return plan, options.out


def main() -> int:
    """Train, save and check. Exit with 1 if an answer is not exact in bfloat16."""
    plan, folder = parse_plan()
    console = Console()
    started = time.monotonic()
    torch.set_num_threads(plan.threads)
    torch.manual_seed(plan.seed)
    folder.mkdir(parents=True, exist_ok=True)
    entries = load_entries()
    corpus = Corpus(entries, random.Random(plan.seed))
    if plan.new_tokenizer or plan.start_from is None:
        tokenizer = train_tokenizer(corpus.tokenizer_texts())
    else:
        tokenizer = Tokenizer.from_file(str(plan.start_from / "tokenizer.json"))
    save_tokenizer(tokenizer, folder)
    model = train_model(entries, corpus, tokenizer, plan, folder, console)
    console.print(f"float32: {report(recall(model, tokenizer, entries))}")
    save_model(model, folder)
    model.to(torch.bfloat16)
    results = recall(model, tokenizer, entries)
    console.print(f"bfloat16: {report(results)}")
    for result in results:
        if not result.exact:
            asked = "" if result.entry is None else f": {entries[result.entry].question}"
            console.print(f"not exact ({result.form}){asked}")
    console.print(f"{time.monotonic() - started:.0f} s, written to {folder}")
    return 0 if all(result.exact for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
