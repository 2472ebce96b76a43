"""The tool is well formed, and its training text is what engines and parsers read and write."""

import json
import random
from functools import partial

import jinja2
import jsonschema
import pytest

from deployments.demo_model import MODEL_DIR
from deployments.demo_model.corpus import Corpus, known_calls
from deployments.demo_model.questions import load_entries
from deployments.demo_model.tokenizer import BEGIN, CALL, CHAT_TEMPLATE, END, END_CALL, THINK
from deployments.demo_model.weather import (
    CITIES,
    RESULTS,
    UNKNOWN_RESULT_ANSWER,
    WEATHER,
    WORDINGS,
    call,
    draw_other_tool,
    draw_result,
    draw_weather_tool,
    sentence,
    weather_question,
)


def rendered(messages: list[dict[str, object]], tools: list[dict[str, object]], **variables: object) -> str:
    environment = jinja2.Environment(autoescape=False)  # noqa: S701 - a prompt is not HTML
    environment.filters["tojson"] = partial(json.dumps, ensure_ascii=False)
    template = environment.from_string(CHAT_TEMPLATE)
    wrapped = [{"type": "function", "function": tool} for tool in tools]
    return template.render(
        messages=messages, tools=wrapped, bos_token=BEGIN, eos_token=END, add_generation_prompt=True, **variables
    )


@pytest.mark.parametrize("city", CITIES)
def test_a_call_is_in_the_form_of_hermes_and_follows_the_schema(city):
    said = json.loads(call(city).removeprefix(CALL).removesuffix(END_CALL))
    assert said == {"name": "get_weather", "arguments": {"city": city}}
    jsonschema.validate(said["arguments"], WEATHER["parameters"])


def test_every_question_names_its_city_in_lower_case_too():
    rng = random.Random(1)
    for city in CITIES * 30:
        assert city.lower() in weather_question(city, rng).lower()


def test_other_tools_never_have_the_name_of_the_tool():
    rng = random.Random(2)
    assert {draw_weather_tool(rng)["name"] for _ in range(100)} == {"get_weather"}
    assert "get_weather" not in {draw_other_tool(rng)["name"] for _ in range(100)}


def test_a_result_that_is_not_known_is_admitted():
    rng = random.Random(3)
    drawn = [draw_result(rng) for _ in range(300)]
    assert {result for result, _ in drawn} >= set(RESULTS)
    for result, text in drawn:
        assert result in text.lower()
        assert (sentence(result) == UNKNOWN_RESULT_ANSWER) == (result not in RESULTS)


def test_the_prompts_of_training_are_what_the_chat_template_makes():
    known = known_calls()
    (asked, _), (thinking, _), (told, _) = (known[form][0] for form in ("calls", "thoughtful calls", "results"))
    city = CITIES[0]
    messages = [{"role": "user", "content": WORDINGS[0].format(city)}]
    assert rendered(messages, [WEATHER]) == asked
    assert rendered(messages, [WEATHER], enable_thinking=True) == thinking == asked + THINK
    function = {"name": "get_weather", "arguments": {"city": city}}
    messages = [
        {"role": "user", "content": WORDINGS[2].format(city)},
        {"role": "assistant", "content": None, "tool_calls": [{"type": "function", "function": function}]},
        {"role": "tool", "content": RESULTS[0]},
    ]
    assert rendered(messages, [WEATHER]) == told


def test_documents_repeat_with_their_seed():
    first, second = (Corpus(load_entries(), random.Random(4)) for _ in range(2))
    assert [first.document() for _ in range(50)] == [second.document() for _ in range(50)]


def test_the_shipped_tokenizer_keeps_tags_in_the_text():
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(MODEL_DIR / "tokenizer.json"))
    ids = tokenizer.encode(f"{THINK}a{CALL}{END}", add_special_tokens=False).ids
    assert len(ids) == 4
    assert tokenizer.decode(ids) == f"{THINK}a{CALL}"
