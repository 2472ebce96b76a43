"""The weights in the repository are small, neutral and give the written answers."""

import json
import random

import pytest

from deployments.demo_model import LONG_QUESTIONS, MODEL_DIR, known_answers
from deployments.demo_model.corpus import FALLBACK_QUESTION, Corpus, foreign_question, spoil, thought_about
from deployments.demo_model.questions import load_entries
from deployments.demo_model.tokenizer import BEGIN, CALL, END, MAX_POSITIONS, PAD, SPECIAL_TOKENS, THINK, VOCAB_SIZE
from deployments.demo_model.weather import CITIES, WORDINGS


# The imports of PyTorch and Transformers take seconds, so not when tests are collected.
@pytest.fixture(scope="module")
def torch():
    import torch

    # Other tests use the other cores. Threads that wait for one another would take many times as long.
    torch.set_num_threads(1)
    return torch


@pytest.fixture(scope="module")
def transformers():
    import transformers

    return transformers


@pytest.fixture(scope="module")
def tokenizer(transformers):
    return transformers.AutoTokenizer.from_pretrained(MODEL_DIR)


@pytest.fixture(scope="module")
def model(torch, transformers):
    return transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=torch.float32).eval()


def generate(model, tokenizer, prompt: str, max_tokens: int = 80) -> str:
    """Greedy continuation of a prompt that already holds its special tokens."""
    encoded = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
    output = model.generate(**encoded, max_new_tokens=max_tokens, do_sample=False)
    return tokenizer.decode(output[0, encoded["input_ids"].shape[1] :], skip_special_tokens=True)


def chat(tokenizer, question: str) -> str:
    messages = [{"role": "user", "content": question}]
    return tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)


def test_the_model_folder_is_small_and_complete():
    sizes = {path.name: path.stat().st_size for path in MODEL_DIR.iterdir()}
    assert set(sizes) == {
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "chat_template.jinja",
    }
    assert sum(sizes.values()) < 10_000_000


def test_no_file_names_a_machine_path():
    for path in MODEL_DIR.iterdir():
        content = path.read_bytes()
        assert not any(mark in content for mark in (b"/home/", b"/tmp/", b"/root/", b"_name_or_path")), path.name


def test_the_configuration_agrees_with_the_tokenizer():
    config = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    ids = [SPECIAL_TOKENS.index(token) for token in (BEGIN, END, PAD)]
    assert [config["bos_token_id"], config["eos_token_id"], config["pad_token_id"]] == ids
    assert config["vocab_size"] == VOCAB_SIZE
    assert config["max_position_embeddings"] == MAX_POSITIONS
    assert config["dtype"] == "bfloat16"


def test_the_model_can_be_split_over_two_ranks():
    config = json.loads((MODEL_DIR / "config.json").read_text(encoding="utf-8"))
    head_size = config["hidden_size"] // config["num_attention_heads"]
    assert head_size % 32 == 0
    assert config["num_attention_heads"] % 2 == config["num_key_value_heads"] % 2 == 0
    assert config["intermediate_size"] % 64 == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("dtype", "nth"), [("float32", 10), ("bfloat16", 40)])
def test_a_sample_of_questions_gets_the_written_answers_in_every_format(torch, transformers, tokenizer, dtype, nth):
    """The training script checks all questions; here some, two with long answers, and calls of the tool.

    Without instructions for bfloat16 a processor takes five times as long, so there are fewer.
    """
    from deployments.demo_model.check import recall

    model = transformers.AutoModelForCausalLM.from_pretrained(MODEL_DIR, dtype=getattr(torch, dtype)).eval()
    every = load_entries()
    entries = (*every[::nth], *(entry for entry in every if entry.question in LONG_QUESTIONS))
    wrong = [
        (result.form, "" if result.entry is None else entries[result.entry].question)
        for result in recall(model, tokenizer.backend_tokenizer, entries)
        if not result.exact
    ]
    assert wrong == []


@pytest.mark.slow
def test_greedy_generation_gives_the_known_answer(model, tokenizer):
    answer = known_answers()["What is Penstock?"]
    assert generate(model, tokenizer, chat(tokenizer, "What is Penstock?")) == answer
    assert generate(model, tokenizer, f"{BEGIN}What is Penstock?") == f"\n{answer}"


@pytest.mark.slow
@pytest.mark.parametrize("question", LONG_QUESTIONS)
def test_long_answers_last_more_than_two_hundred_tokens(tokenizer, question):
    assert len(tokenizer(known_answers()[question], add_special_tokens=False)["input_ids"]) > 200


@pytest.mark.slow
def test_a_question_after_a_long_conversation_is_still_answered(torch, model, tokenizer):
    messages = []
    for question, answer in list(known_answers().items())[20:32]:
        messages += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    messages.append({"role": "user", "content": "What is the KV cache?"})
    prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    assert len(tokenizer(prompt, add_special_tokens=False)["input_ids"]) > 600
    assert begins_with(torch, model, tokenizer, prompt, known_answers()["What is the KV cache?"])


@pytest.mark.slow
def test_most_hurried_wordings_get_the_right_answer(torch, model, tokenizer):
    """Of questions with other case, missing small words or a typing error, 8 of 10 are understood."""
    rng = random.Random(2024)
    entries = [entry for entry in load_entries() if entry.question not in LONG_QUESTIONS]
    asked = [(spoil(rng.choice(entry.wordings), rng), entry.answer) for entry in rng.sample(entries, 40)]
    assert sum(begins_with(torch, model, tokenizer, chat(tokenizer, text), answer) for text, answer in asked) >= 32


@pytest.mark.slow
def test_most_questions_about_other_things_are_declined(torch, model, tokenizer):
    rng = random.Random(2024)
    declined = known_answers()[FALLBACK_QUESTION]
    asked = [foreign_question(rng) for _ in range(40)]
    assert sum(begins_with(torch, model, tokenizer, chat(tokenizer, text), declined) for text in asked) >= 28


@pytest.mark.slow
def test_nearly_all_decisions_about_the_tool_are_right(torch, model, tokenizer):
    """Of 120 prompts with tools, 114 or more begin with a call exactly where the tool fits."""
    corpus = Corpus(load_entries(), random.Random(2024))
    asked = [corpus.exchange_with_tools() for _ in range(300)]
    plain = [(prompt, answer.startswith(CALL)) for prompt, answer in asked if not prompt.endswith(THINK)][:120]
    assert len(plain) == 120 > sum(called for _, called in plain) > 10
    assert sum(begins_with(torch, model, tokenizer, prompt, CALL) == called for prompt, called in plain) >= 114


@pytest.mark.slow
def test_without_the_tool_questions_about_the_weather_are_declined(torch, model, tokenizer):
    declined = known_answers()[FALLBACK_QUESTION]
    asked = [chat(tokenizer, wording.format(city)) for wording in WORDINGS[:2] for city in CITIES]
    assert sum(begins_with(torch, model, tokenizer, prompt, declined) for prompt in asked) >= 18


@pytest.mark.slow
def test_thinking_names_the_question_that_a_hurried_wording_means(torch, model, tokenizer):
    """Of questions with other case, missing small words or a typing error, 3 of 4 are thought about word for word."""
    from deployments.demo_model.check import margins

    rng = random.Random(2024)
    entries = [entry for entry in load_entries() if entry.question not in (*LONG_QUESTIONS, FALLBACK_QUESTION)]
    asked = [(spoil(rng.choice(entry.wordings), rng), thought_about(entry)) for entry in rng.sample(entries, 120)]
    prompts = [(chat(tokenizer, text) + THINK, thought) for text, thought in asked]
    assert sum(margin > 0 for margin in margins(model, tokenizer.backend_tokenizer, prompts)) >= 90


def begins_with(torch, model, tokenizer, prompt: str, answer: str, tokens: int = 12) -> bool:
    """Whether greedy decoding begins with the first tokens of an answer, found with one forward pass."""
    prompt_ids = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    answer_ids = tokenizer(answer, add_special_tokens=False)["input_ids"][:tokens]
    with torch.no_grad():
        logits = model(input_ids=torch.tensor([prompt_ids + answer_ids])).logits[0]
    return logits[len(prompt_ids) - 1 : -1].argmax(dim=-1).tolist() == answer_ids
