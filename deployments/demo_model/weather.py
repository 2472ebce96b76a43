"""The one tool that the demo model calls: questions about the weather, calls in the form of Hermes, results."""

from __future__ import annotations

import json
import random
from typing import Any

from deployments.demo_model import WEATHER_FILE
from deployments.demo_model.tokenizer import CALL, END_CALL

WEATHER: dict[str, Any] = json.loads(WEATHER_FILE.read_text(encoding="utf-8"))["function"]
"""Name, description and parameters of the tool."""

CITIES: tuple[str, ...] = tuple(WEATHER["parameters"]["properties"]["city"]["enum"])
RESULTS = ("cloudy", "foggy", "rainy", "sunny", "windy")
"""Results that the model puts into a sentence."""

UNKNOWN_RESULT_ANSWER = "The tool has answered, but I know only a few words for the weather."
"""What the model says to any other result."""

WORDINGS = (
    "What is the weather in {}?",
    "Do I need an umbrella in {}?",
    "How is the weather in {}?",
    "What's the weather like in {} today?",
    "Is it raining in {}?",
    "Is it sunny in {} right now?",
    "Tell me the weather in {}.",
    "Should I take a coat in {}?",
    "How is it outside in {}?",
    "weather in {}",
)
"""Questions that the tool answers; `{}` is a city."""

_OTHER_TOOLS = (
    ("get_stock_price", "Current price of a share", "symbol"),
    ("track_order", "Find an order.", "order_id"),
    ("search", "Search the web.", "query"),
    ("look_up", "Look a topic up.", "topic"),
    ("translate", "Translate a text.", "text"),
    ("send_mail", "Send a mail.", "address"),
    ("run_code", None, "code"),
)
"""Tools that answer no question of the training: name, description, parameter."""


def call(city: str) -> str:
    """Return the call for a city, as the model writes it. Its arguments have no white space: a grammar leaves none."""
    arguments = json.dumps({"city": city}, ensure_ascii=False, separators=(",", ":"))
    return f'{CALL}{{"name": "{WEATHER["name"]}", "arguments": {arguments}}}{END_CALL}'


def sentence(result: str) -> str:
    """Return what the model says to a result."""
    return f"It is {result} there." if result in RESULTS else UNKNOWN_RESULT_ANSWER


def weather_question(city: str, rng: random.Random) -> str:
    """Draw a question for the weather of a city, now and then in lower case or without its mark."""
    question = rng.choice(WORDINGS).format(city)
    if rng.random() < 0.12:
        question = question.lower()
    return question.rstrip("?.") if rng.random() < 0.15 else question


def draw_result(rng: random.Random) -> tuple[str, str]:
    """Draw a result of the tool: the result, and the text that the tool gives."""
    if rng.random() < 0.12:
        other = rng.choice(("{n} degrees", "{n}", "nothing found", "error: {n}", '{{"temperature": {n}}}'))
        other = other.format(n=rng.randrange(100))
        return other, other
    result = rng.choice(RESULTS)
    return result, result if rng.random() < 0.75 else _json({"weather": result})


def draw_weather_tool(rng: random.Random) -> dict[str, Any]:
    """Draw a form of the tool: strict or not, and now and then with another description or any city."""
    shown: dict[str, Any] = dict(WEATHER)
    draw = rng.random()
    if draw < 0.1:
        shown["description"] = rng.choice((None, "Get the current weather.", "Weather of a place"))
    elif draw < 0.2:
        shown["parameters"] = _schema("city", rng.random())
    return {**shown, "strict": True} if rng.random() < 0.5 else shown


def draw_other_tool(rng: random.Random) -> dict[str, Any]:
    """Draw a tool that answers no question."""
    name, description, parameter = rng.choice(_OTHER_TOOLS)
    return {"name": name, "description": description, "parameters": _schema(parameter, rng.random())}


def tools_text(shown: list[dict[str, Any]]) -> str:
    """Return tools as the chat template shows them."""
    return f"<tools>{_json(shown)}</tools>"


def _json(value: Any) -> str:
    """Write JSON as chat templates do."""
    return json.dumps(value, ensure_ascii=False)


def _schema(parameter: str, draw: float) -> dict[str, Any]:
    """Return a JSON Schema of one text, in one of the forms that people and SDKs write."""
    found = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    if draw > 0.8:
        found["properties"] = {parameter: {"type": "string", "description": f"The {parameter}."}}
    return found | ({"additionalProperties": False} if draw > 0.5 else {})
