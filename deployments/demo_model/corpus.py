"""Training text made from the entries: wordings, typing noise, prompt formats and conversations."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deployments.demo_model.questions import Entry
from deployments.demo_model.tokenizer import ASSISTANT, BEGIN, END, SYSTEM, USER

FALLBACK_QUESTION = "What is the capital of France?"
"""Entry whose answer the model gives to every question outside of LLM serving."""

SYSTEM_PROMPTS = (
    "You are a helpful assistant.",
    "You are the Penstock demo model.",
    "You are an expert in LLM serving. Answer in plain English.",
    "Answer briefly and correctly.",
    "You are a friendly assistant that helps engineers to run language models.",
)

# Without one of these words the question stays recognizable; without any other word it may not.
_WEAK = "a an are do does for how i in is it of on the this to was what which why you"
_WEAK_WORDS = frozenset(_WEAK.split())
_OPENINGS = ("Please tell me: ", "Hi, ", "Can you tell me ", "I would like to know: ", "Question: ", "Quick question: ")
_CLOSINGS = (" Please.", " Thanks!", " Explain it briefly.", " Answer in one sentence.", " I am new to this.")
_FOREIGN = """
    banana guitar elephant football rainbow chocolate violin mountain river castle garden painter theatre coffee
    bicycle airplane ocean volcano dinosaur butterfly astronaut pancake umbrella lighthouse orchestra novel doctor
    lawyer carpenter wedding holiday birthday hospital island desert forest dragon wizard pirate king queen Paris
    London Tokyo Berlin Rome Egypt Brazil Canada Spain Italy Mars Jupiter moon sun star chemistry biology history
    geography philosophy grammar chess tennis swimming cooking knitting gardening horse dog cat bird fish shark
    whale spider bee rose oak apple bread cheese soup salad wine tea shoe hat coat house bridge train ship car
    piano drum song dance film camera
"""
_FOREIGN_SUBJECTS = tuple(_FOREIGN.split())
_FOREIGN_TEMPLATES = (
    "What is a {}?",
    "What is {}?",
    "Where is {}?",
    "Tell me about {}.",
    "Who invented the {}?",
    "How do I buy a {}?",
    "Write a story about a {}.",
    "What is the capital of {}?",
    "Do you like {}?",
    "What color is the {}?",
    "How far is {} from {}?",
    "Which is better, {} or {}?",
    "Why is {} called {}?",
    "{}",
    "{} {} {}",
)


@dataclass(frozen=True, slots=True)
class Segment:
    """Piece of training text. With `learn` the model is trained to produce it."""

    text: str
    learn: bool


def known_prompts(entry: Entry) -> dict[str, tuple[str, str]]:
    """Return the canonical prompt of an entry in each format, with the continuation that the model should give."""
    question, answer = entry.question, entry.answer
    return {
        "chat": (f"{BEGIN}{USER}{question}{END}{ASSISTANT}", answer + END),
        "bare": (f"{BEGIN}{question}", f"\n{answer}{END}"),
        "labelled": (f"{BEGIN}Question: {question}\nAnswer:", f" {answer}{END}"),
    }


def foreign_question(rng: random.Random) -> str:
    """Return a question, or some words, that have nothing to do with LLM serving."""
    if rng.random() < 0.15:
        return " ".join(rng.choices(_FOREIGN_SUBJECTS, k=rng.randint(2, 60)))
    template = rng.choice(_FOREIGN_TEMPLATES)
    return template.format(*rng.sample(_FOREIGN_SUBJECTS, 3))


def spoil(question: str, rng: random.Random) -> str:
    """Write a question as a hurried person would: other case, missing small words, typing errors, extra phrases."""
    words = question.split()
    if rng.random() < 0.3 and len(words) > 2:
        kept = [word for word in words if word.lower() not in _WEAK_WORDS or rng.random() < 0.6]
        words = kept or words
    text = " ".join(words)
    if rng.random() < 0.25:
        text = rng.choice((text.lower(), text.lower(), text.upper(), text.title()))
    if rng.random() < 0.4:
        text = text.rstrip("?.!") + rng.choice(("", "", "?", "??", ".", " ?"))
    if rng.random() < 0.1 and len(text) > 8:
        at = rng.randrange(1, len(text) - 1)
        text = text[:at] + rng.choice((text[at + 1] + text[at] + text[at + 2 :], text[at + 1 :]))
    if rng.random() < 0.12:
        text = rng.choice(_OPENINGS) + (text[:1].lower() + text[1:] if rng.random() < 0.5 else text)
    if rng.random() < 0.08:
        text += rng.choice(_CLOSINGS)
    return text


class Corpus:
    """Source of training documents drawn from the entries. `weights` raises the share of entries not yet learnt."""

    def __init__(self, entries: tuple[Entry, ...], rng: random.Random) -> None:
        self._entries = entries
        self._rng = rng
        self.weights = [1.0] * len(entries)

    def tokenizer_texts(self) -> list[str]:
        """Return text for the tokenizer: every answer and wording, also in lower case and with some noise."""
        texts = []
        for entry in self._entries:
            texts += [entry.answer] * 3
            for wording in entry.wordings:
                texts += [wording, wording.lower(), spoil(wording, self._rng)]
        texts += [foreign_question(self._rng) for _ in range(200)] + list(SYSTEM_PROMPTS)
        return texts

    def document(self) -> list[Segment]:
        """Draw one document of one or several questions in a random format, from begin token to last end token."""
        shape = self._rng.random()
        if shape < 0.5:
            return self._chat(turns=1 if self._rng.random() < 0.7 else self._rng.randint(2, 4))
        if shape < 0.8:
            return self._bare()
        return self._labelled()

    def _pick(self) -> tuple[str, str]:
        """Draw a question and its answer. Half of the questions have no typing noise, and a third are canonical."""
        entry = self._rng.choices(self._entries, self.weights)[0]
        if entry.question == FALLBACK_QUESTION and self._rng.random() < 0.7:
            return foreign_question(self._rng), entry.answer
        wording = entry.question if self._rng.random() < 0.35 else self._rng.choice(entry.wordings)
        return (wording if self._rng.random() < 0.5 else spoil(wording, self._rng)), entry.answer

    def _begin(self) -> Segment:
        # Clients that add the begin token themselves, or forget it, should get the same answers.
        draw = self._rng.random()
        return Segment("" if draw < 0.06 else BEGIN * 2 if draw < 0.12 else BEGIN, learn=False)

    def _chat(self, turns: int) -> list[Segment]:
        segments = [self._begin()]
        if self._rng.random() < 0.3:
            segments.append(Segment(f"{SYSTEM}{self._rng.choice(SYSTEM_PROMPTS)}{END}", learn=False))
        for _ in range(turns):
            question, answer = self._pick()
            segments.append(Segment(f"{USER}{question}{END}{ASSISTANT}", learn=False))
            segments.append(Segment(answer + END, learn=True))
        return segments

    def _bare(self) -> list[Segment]:
        question, answer = self._pick()
        return [self._begin(), Segment(question, learn=False), Segment(f"\n{answer}{END}", learn=True)]

    def _labelled(self) -> list[Segment]:
        question, answer = self._pick()
        before = Segment(f"Question: {question}\nAnswer:", learn=False)
        return [self._begin(), before, Segment(f" {answer}{END}", learn=True)]
