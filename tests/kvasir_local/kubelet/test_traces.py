"""What pods left outside of their node's directory goes with the node, and nothing else."""

from pathlib import Path

from kvasir_local.kubelet import traces


def test_files_and_links_of_a_node_go_and_others_stay(tmp_path):
    node = Path("/var/lib/kvasir/0/1")
    results, links = tmp_path / "results", tmp_path / "containers"
    results.mkdir()
    links.mkdir()
    (results / "kvasir-a-eth0").write_text('{"sandbox":"/var/lib/kvasir/0/1/containerd/netns/x"}')
    (results / "kvasir-b-eth0").write_text('{"sandbox":"/var/lib/kvasir/0/10/containerd/netns/x"}')
    (results / "other-c-eth0").write_text('{"sandbox":"/run/netns/x"}')
    (links / "a.log").symlink_to(node / "logs" / "a" / "0.log")
    (links / "b.log").symlink_to("/var/log/pods/b/0.log")
    (links / "c.log").write_text("a file")
    traces.remove(node, results=results, links=links)
    assert {path.name for path in results.iterdir()} == {"kvasir-b-eth0", "other-c-eth0"}
    assert {path.name for path in links.iterdir()} == {"b.log", "c.log"}


def test_directories_that_are_not_there_are_no_error(tmp_path):
    traces.remove(tmp_path, results=tmp_path / "none", links=tmp_path / "none")
