"""The written questions and answers are complete and unambiguous."""

import json

import pytest

from deployments.demo_model import LONG_QUESTIONS, known_answers
from deployments.demo_model.corpus import FALLBACK_QUESTION
from deployments.demo_model.questions import QUESTIONS_FILE, load_entries

EXPECTED_QUESTIONS = (
    "What is Penstock?",
    "What is a penstock?",
    "What is the KV cache?",
    "What is tensor parallelism?",
    "What is time to first token?",
    "Hello",
    "Who are you?",
)


def test_every_line_is_one_entry_with_wordings():
    for line in QUESTIONS_FILE.read_text(encoding="utf-8").splitlines():
        record = json.loads(line)
        assert set(record) == {"question", "answer", "variants"}
        assert record["variants"]
        assert all(
            text == text.strip() and text for text in (record["question"], record["answer"], *record["variants"])
        )


def test_answers_are_whole_sentences_of_moderate_length():
    for entry in load_entries():
        words = len(entry.answer.split())
        limit = 200 if entry.question in LONG_QUESTIONS else 60
        assert 10 <= words <= limit, entry.question
        assert entry.answer[-1] in ".!?", entry.question


def test_no_answer_is_given_to_two_questions():
    answers = [entry.answer for entry in load_entries()]
    assert len(answers) == len(set(answers))
    assert len(answers) >= 200


def test_two_entries_with_one_wording_are_refused(tmp_path):
    path = tmp_path / "questions.jsonl"
    lines = [{"question": "What is X?", "answer": "A."}, {"question": "Y?", "answer": "B.", "variants": ["what is x?"]}]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    with pytest.raises(ValueError, match=r"what is x\?"):
        load_entries(path)


@pytest.mark.parametrize("question", [*EXPECTED_QUESTIONS, *LONG_QUESTIONS, FALLBACK_QUESTION])
def test_known_answers_has_the_questions_that_others_rely_on(question):
    assert known_answers()[question]


def test_known_answers_cannot_be_changed_by_a_caller():
    with pytest.raises(TypeError):
        known_answers()["Hello"] = "x"
