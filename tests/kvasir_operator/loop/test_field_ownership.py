"""What was created belongs to an apply before the first apply."""

from kvasir_operator.loop.field_ownership import owned_by_apply

US = "kvasir-operator"


def entry(manager, operation, fields, **more):
    return {"manager": manager, "operation": operation, "apiVersion": "v1", "fieldsV1": fields, **more}


def managed(*entries):
    return {"metadata": {"managedFields": list(entries)}}


def test_what_we_created_and_what_we_applied_become_one_entry_of_an_apply():
    created = {"f:spec": {"f:a": {}, "f:b": {".": {}}}}
    applied = {"f:spec": {"f:b": {"f:c": {}}}, "f:metadata": {}}
    other = entry("kubectl", "Update", {"f:spec": {"f:z": {}}})
    status = entry(US, "Update", {"f:status": {}}, subresource="status")
    found = managed(entry(US, "Update", created), other, entry(US, "Apply", applied), status)
    assert owned_by_apply(found, US) == [
        entry(US, "Apply", {"f:spec": {"f:a": {}, "f:b": {".": {}, "f:c": {}}}, "f:metadata": {}}),
        other,
        status,
    ]


def test_nothing_is_to_be_moved_where_all_was_applied_or_is_of_others():
    assert owned_by_apply(managed(entry(US, "Apply", {"f:spec": {}}), entry("x", "Update", {})), US) == []
    assert owned_by_apply({"metadata": {}}, US) == []
