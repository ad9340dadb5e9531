"""Prompts whose text the answers of the model copy."""

from collections import Counter

from bench import copying_model


def test_an_edited_text_has_other_ids_in_a_few_places_and_ends_before_the_answer() -> None:
    ids = copying_model.chain(4096)
    prompt = copying_model.edit(ids, 10, 500, seed=1)
    other = sum(one != ids[10 + place] for place, one in enumerate(prompt[:-1]))
    assert (len(prompt), prompt[-1]) == (501, ids[9])
    assert 5 < other < 40


def test_a_document_holds_all_passages_of_the_answer_among_others() -> None:
    ids = copying_model.chain(4096)
    prompt = copying_model.extract(ids, 10, 256, seed=3)
    assert not Counter(ids[10:266]) - Counter(prompt)
    assert len(prompt) == 256 + 4 * 32 + 1
    assert prompt[-1] == ids[9]
