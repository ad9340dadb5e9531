"""The relay beside the picker: streams that wait for a replica, or that go on at another one where theirs fails."""
