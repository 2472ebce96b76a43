"""Training text made from the entries and from one tool: wordings, typing noise, prompt formats, conversations."""

from __future__ import annotations

import random
from dataclasses import dataclass

from deployments.demo_model.questions import Entry
from deployments.demo_model.tokenizer import ASSISTANT, BEGIN, END, END_THINK, SYSTEM, THINK, USER
from deployments.demo_model.weather import (
    CITIES,
    RESULTS,
    WEATHER,
    WORDINGS,
    call,
    draw_other_tool,
    draw_result,
    draw_weather_tool,
    sentence,
    tools_text,
    weather_question,
)

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


def thought_about(entry: Entry) -> str:
    """Return what the model thinks before the answer of an entry."""
    if entry.question == FALLBACK_QUESTION:
        return "This is not about LLM serving. I have learnt no answer to it."
    return f"This means: {entry.question} I have learnt the answer."


THOUGHT_ABOUT_CALL = "This asks for the weather. A tool can tell it."
"""What the model thinks before a call."""

THOUGHT_ABOUT_RESULT = "The tool has answered."
"""What the model thinks after a call."""


def known_prompts(entry: Entry) -> dict[str, tuple[str, str]]:
    """Return the canonical prompt of an entry in each format, with the continuation that the model should give."""
    question, answer = entry.question, entry.answer
    chat = f"{BEGIN}{USER}{question}{END}{ASSISTANT}"
    return {
        "chat": (chat, answer + END),
        "thinking": (f"{chat}{THINK}", f"{thought_about(entry)}{END_THINK}{answer}{END}"),
        "bare": (f"{BEGIN}{question}", f"\n{answer}{END}"),
        "labelled": (f"{BEGIN}Question: {question}\nAnswer:", f" {answer}{END}"),
    }


def known_calls() -> dict[str, list[tuple[str, str]]]:
    """Return prompts with the tool, and what the model should say: calls, calls after a thought, answers to results."""
    found: dict[str, list[tuple[str, str]]] = {"calls": [], "thoughtful calls": [], "results": []}
    for city in CITIES:
        for wording in WORDINGS[:3]:
            asked = f"{BEGIN}{SYSTEM}{tools_text([WEATHER])}{END}{USER}{wording.format(city)}{END}{ASSISTANT}"
            found["calls"].append((asked, call(city) + END))
            thoughtful = f"{THOUGHT_ABOUT_CALL}{END_THINK}{call(city)}{END}"
            found["thoughtful calls"].append((asked + THINK, thoughtful))
        for result in RESULTS:
            told = f"{asked}{call(city)}{END}{USER}<tool_response>{result}</tool_response>{END}{ASSISTANT}"
            found["results"].append((told, sentence(result) + END))
    return found


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
        self._fallback = next(entry for entry in entries if entry.question == FALLBACK_QUESTION)
        self.weights = [1.0] * len(entries)

    def tokenizer_texts(self) -> list[str]:
        """Return text for the tokenizer: every answer and wording, also in lower case and with some noise."""
        texts = []
        for entry in self._entries:
            texts += [entry.answer] * 3
            for wording in entry.wordings:
                texts += [wording, wording.lower(), spoil(wording, self._rng)]
        texts += [foreign_question(self._rng) for _ in range(200)] + list(SYSTEM_PROMPTS)
        # Few: answers need most of the vocabulary.
        for city in CITIES:
            texts += [weather_question(city, self._rng), tools_text([draw_weather_tool(self._rng)]), call(city)]
        return texts

    def document(self) -> list[Segment]:
        """Draw one document of one or several questions in a random format, from begin token to last end token."""
        shape = self._rng.random()
        if shape < 0.44:
            return self._chat(turns=1 if self._rng.random() < 0.7 else self._rng.randint(2, 4))
        if shape < 0.55:
            return self._bare()
        if shape < 0.65:
            return self._labelled()
        return self._with_tools()

    def exchange_with_tools(self) -> tuple[str, str]:
        """Draw a prompt with tools, and the answer or call that the model should give."""
        *before, answer = self._with_tools()
        return "".join(segment.text for segment in before), answer.text

    def _pick(self) -> tuple[str, Entry]:
        """Draw a question and its entry. Half of the questions have no typing noise, and a third are canonical."""
        entry = self._rng.choices(self._entries, self.weights)[0]
        if entry.question == FALLBACK_QUESTION and self._rng.random() < 0.7:
            return foreign_question(self._rng), entry
        wording = entry.question if self._rng.random() < 0.35 else self._rng.choice(entry.wordings)
        return (wording if self._rng.random() < 0.5 else spoil(wording, self._rng)), entry

    def _begin(self) -> Segment:
        # Clients that add the begin token themselves, or forget it, should get the same answers.
        draw = self._rng.random()
        return Segment("" if draw < 0.06 else BEGIN * 2 if draw < 0.12 else BEGIN, learn=False)

    def _chat(self, turns: int) -> list[Segment]:
        segments = [self._begin()]
        if self._rng.random() < 0.3:
            segments.append(Segment(f"{SYSTEM}{self._rng.choice(SYSTEM_PROMPTS)}{END}", learn=False))
        for turn in range(turns):
            segments += self._question(last=turn == turns - 1)
        return segments

    def _bare(self) -> list[Segment]:
        question, entry = self._pick()
        return [self._begin(), Segment(question, learn=False), Segment(f"\n{entry.answer}{END}", learn=True)]

    def _labelled(self) -> list[Segment]:
        question, entry = self._pick()
        before = Segment(f"Question: {question}\nAnswer:", learn=False)
        return [self._begin(), before, Segment(f" {entry.answer}{END}", learn=True)]

    def _city(self) -> str:
        return self._rng.choice(CITIES)

    def _with_tools(self) -> list[Segment]:
        """Draw a conversation with tools. In one of eight the only tool does not fit."""
        rng = self._rng
        fits, shown = rng.random() < 0.875, [draw_weather_tool(rng)]
        if not fits or rng.random() < 0.08:
            shown.insert(rng.randint(0, 1), draw_other_tool(rng))
        if not fits:
            shown = [tool for tool in shown if tool["name"] != WEATHER["name"]]
        before = f"{rng.choice(SYSTEM_PROMPTS)} " if rng.random() < 0.2 else ""
        segments = [self._begin(), Segment(f"{SYSTEM}{before}{tools_text(shown)}{END}", learn=False)]
        turns = rng.choices((1, 2, 3), (0.4, 0.4, 0.2))[0]
        for turn in range(turns):
            last = turn == turns - 1
            if fits and rng.random() < 0.65:
                segments += self._call(last=last)
            else:
                segments += self._question(last=last, declined=0.3, weather=0.0 if fits else 0.7)
        return segments

    def _call(self, *, last: bool) -> list[Segment]:
        """Return a question with its call, and mostly with the result."""
        city, more = self._city(), self._rng.random() < 0.6
        asked = weather_question(city, self._rng)
        segments = self._turn(asked, THOUGHT_ABOUT_CALL, call(city), last=last and not more)
        if more:
            result, text = draw_result(self._rng)
            said = f"<tool_response>{text}</tool_response>"
            segments += self._turn(said, THOUGHT_ABOUT_RESULT, sentence(result), last=last)
        return segments

    def _question(self, *, last: bool, declined: float = 0.05, weather: float = 0.6) -> list[Segment]:
        """Return a question with its answer. A share of them is declined. Of these, a share asks for the weather:
        without the tool that is one more foreign question.
        """
        if self._rng.random() >= declined:
            question, entry = self._pick()
        elif self._rng.random() < weather:
            question, entry = weather_question(self._city(), self._rng), self._fallback
        else:
            question, entry = foreign_question(self._rng), self._fallback
        return self._asked(question, entry, last=last)

    def _asked(self, question: str, entry: Entry, *, last: bool) -> list[Segment]:
        return self._turn(question, thought_about(entry), entry.answer, last=last)

    def _turn(self, question: str, thought: str, answer: str, *, last: bool) -> list[Segment]:
        """Return one question with its answer. Only the last turn may have a thought, as in the chat template."""
        before = f"{USER}{question}{END}{ASSISTANT}"
        if last and self._rng.random() < 0.5:
            return [Segment(before + THINK, learn=False), Segment(f"{thought}{END_THINK}{answer}{END}", learn=True)]
        return [Segment(before, learn=False), Segment(answer + END, learn=True)]
