"""Objects are parsed once: those that a list keeps are not parsed again."""

from kvasir_gateway.parsed_objects import PerObject


def test_only_new_objects_are_parsed():
    parsed = []
    per_object = PerObject(lambda one: parsed.append(one["n"]) or 10 * one["n"])
    objects = [{"n": number} for number in range(4)]
    assert per_object.of(objects) == [0, 10, 20, 30]
    assert per_object.of([objects[3], {"n": 7}, objects[0]]) == [30, 70, 0]
    assert per_object.of(objects) == [0, 10, 20, 30]
    assert parsed == [0, 1, 2, 3, 7, 1, 2]


def test_an_equal_object_is_another():
    found = iter((1, 2))
    per_object = PerObject(lambda _: next(found))
    assert per_object.of([{"n": 1}]) == [1]
    assert per_object.of([{"n": 1}]) == [2]
