"""A cluster's file is read whole or refused in one sentence."""

from pathlib import Path

import numpy as np
import pytest

from manyhands.errors import UserError
from manyhands.model.cluster import READY_CLUSTERS, READY_LINKS, Cluster, LinkSpec, read_cluster

GOOD = """
nodes = 16
cores = 8
ranks_per_node = 4
core_speed = 1.5
price_per_hour = 0.5
currency = "EUR"
inside = "shared-memory"
slow = [{ node = 3, factor = 2.0 }, { node = 5, factor = 4.0 }]
mtbf_hours = 2000
restart_s = 120

[between]
latency_us = 20
gigabit_per_s = 8
overhead_us = 5.0
duplex = "half"
"""
EXAMPLE = Path(__file__).parents[3] / "examples" / "cluster.toml"
LEAST = 'nodes = 2\ncores = 4\nbetween = "ethernet-1g"\n'


def _write(folder: Path, text: str) -> Path:
    path = folder / "cluster.toml"
    path.write_text(text)
    return path


def test_everything_that_a_file_says_is_taken(tmp_path: Path) -> None:
    cluster = read_cluster(_write(tmp_path, GOOD))
    assert (cluster.nodes, cluster.node_size, cluster.max_ranks) == (16, 4, 64)
    assert (cluster.price_per_hour, cluster.currency) == (0.5, "EUR")
    assert (cluster.mtbf_hours, cluster.restart_s) == (2000, 120)
    assert cluster.inside == READY_LINKS["shared-memory"]
    assert cluster.between == LinkSpec(latency_us=20, gigabit_per_s=8, overhead_us=5, duplex="half")


def test_a_link_in_seconds_and_bytes() -> None:
    link = LinkSpec(latency_us=20, gigabit_per_s=8, overhead_us=5, duplex="half").link()
    assert link.alpha_s == pytest.approx(20e-6)
    assert link.beta_s_per_byte == pytest.approx(1e-9)
    assert link.overhead_s == pytest.approx(5e-6)
    assert not link.full_duplex


def test_what_a_file_leaves_out(tmp_path: Path) -> None:
    cluster = read_cluster(str(_write(tmp_path, LEAST)))
    assert cluster.node_size == 4
    assert cluster.slowness(8).tolist() == [1.0] * 8
    assert cluster.mtbf_hours is None
    assert float(cluster.price(8, 3600)) == 0


def test_ranks_fill_the_nodes_in_order(tmp_path: Path) -> None:
    cluster = read_cluster(_write(tmp_path, GOOD))
    assert cluster.nodes_of([1, 4, 5, 64]).tolist() == [1, 1, 2, 16]
    slowness = cluster.slowness(22) * 1.5
    assert slowness.tolist() == [1.0] * 12 + [2.0] * 4 + [1.0] * 4 + [4.0] * 2


def test_a_node_is_paid_for_as_a_whole(tmp_path: Path) -> None:
    cluster = read_cluster(_write(tmp_path, GOOD))
    assert cluster.price([1, 4, 5], 7200).tolist() == [1.0, 1.0, 2.0]


@pytest.mark.parametrize("name", READY_CLUSTERS)
def test_ready_clusters_have_room_for_the_closed_form(name: str) -> None:
    cluster = read_cluster(name)
    assert cluster.max_ranks >= 65_536
    links = [cluster.inside.link(), cluster.between.link()]
    assert all(link.alpha_s > 0 and link.beta_s_per_byte > 0 for link in links)


def test_ready_links_are_in_order_of_speed() -> None:
    rates = [READY_LINKS[name].gigabit_per_s for name in ("ethernet-1g", "ethernet-10g", "infiniband", "nvlink")]
    assert rates == sorted(rates)
    assert np.diff(rates).min() > 0


def test_the_example_is_a_cluster() -> None:
    cluster = read_cluster(EXAMPLE)
    assert cluster.max_ranks == 128
    assert cluster.between == READY_LINKS["ethernet-10g"]


def test_what_the_example_leaves_out_is_right_too(tmp_path: Path) -> None:
    lines = [line.removeprefix("# ") for line in EXAMPLE.read_text().splitlines() if not line.startswith("between")]
    known = {"[between]", *Cluster.model_fields, *LinkSpec.model_fields}
    settings = [line for line in lines if line.split(" ")[0] in known]
    cluster = read_cluster(_write(tmp_path, "\n".join(settings)))
    assert cluster.model_fields_set == set(Cluster.model_fields)
    assert cluster.between.model_fields_set == set(LinkSpec.model_fields)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        (LEAST + "nodes == 3", "it is not valid TOML"),
        (LEAST.replace("2", "0"), r"nodes must be at least 1, got 0"),
        (LEAST.replace("2", "-5"), r"nodes must be at least 1, got -5"),
        (LEAST.replace("2", "1e30"), r"nodes must be a valid integer, got 1e\+30"),
        (LEAST.replace("2", "10000000"), r"nodes must be less than or equal to 1000000"),
        (LEAST.replace("2", "true"), r"nodes must be a valid integer, got True"),
        (LEAST.replace("2", "'two'"), r"nodes must be a valid integer, got 'two'"),
        ("cores = 1\nbetween = 'nvlink'", r"it needs a value for nodes"),
        ("nodes = 2\ncores = 1", r"it needs a value for between"),
        ("", r"it needs a value for nodes"),
        (LEAST + "node = 3", r"there is no setting of a cluster 'node'; did you mean 'nodes'\?"),
        (LEAST.replace("ethernet-1g", "ethernet-2g"), r"there is no link 'ethernet-2g'; did you mean 'ethernet-1"),
        (LEAST.replace('"ethernet-1g"', "7"), r"a link is one of .* or a table with latency_us .*, got 7"),
        (LEAST + "inside = { latency_us = 1 }", r"it needs a value for inside\.gigabit_per_s"),
        (
            LEAST + "inside = { latency_us = 1, gigabit_per_s = -1 }",
            r"inside\.gigabit_per_s must be greater than 0, got -1",
        ),
        (LEAST + "inside = { latency_us = 1, gigabit_per_s = 0 }", r"inside\.gigabit_per_s must be greater than 0"),
        (LEAST + "inside = { latency_us = 1, gigabit_per_s = inf }", r"inside\.gigabit_per_s must be a finite number"),
        (LEAST + "inside = { latency_us = -1, gigabit_per_s = 1 }", r"inside\.latency_us must be at least 0, got -1"),
        (LEAST + "inside = { latency = 1, gigabit_per_s = 1 }", r"no setting of a link 'latency'; did you mean 'late"),
        (
            LEAST + "inside = { latency_us = 1, gigabit_per_s = 1, overhead_us = 2 }",
            r"overhead_us is a part of latency_us, got 2 of 1 for 'inside'",
        ),
        (
            LEAST + "inside = { latency_us = 1, gigabit_per_s = 1, duplex = 'both' }",
            r"inside\.duplex must be 'full' or 'half', got 'both'",
        ),
        (LEAST + "ranks_per_node = 5", r"ranks_per_node must be at most the 4 cores of a node, got 5"),
        (LEAST + "core_speed = 0", r"core_speed must be greater than 0, got 0"),
        (LEAST + "price_per_hour = -0.1", r"price_per_hour must be at least 0, got -0\.1"),
        (LEAST + "mtbf_hours = 0", r"mtbf_hours must be greater than 0, got 0"),
        (LEAST + "slow = 3", r"slow is a list such as .*, got 3"),
        (LEAST + "slow = [3]", r"slow is a list such as .*, got \[3\]"),
        (LEAST + "slow = [{ node = 2, factor = 2.0 }]", r"slow names node 2, but the 2 nodes are numbered 0 to 1"),
        (LEAST + "slow = [{ node = 1, factor = 0.5 }]", r"slow\.0\.factor must be at least 1, got 0\.5"),
        (LEAST + "slow = [{ node = 1, speed = 0.5 }]", r"there is no setting of a slow node 'speed'"),
        (
            LEAST + "slow = [{ node = 1, factor = 2 }, { node = 1, factor = 3 }]",
            r"slow names node 1 2 times; once is enough",
        ),
    ],
)
def test_a_bad_file_is_refused_in_one_sentence(text: str, sentence: str, tmp_path: Path) -> None:
    path = _write(tmp_path, text)
    with pytest.raises(UserError, match=sentence) as raised:
        read_cluster(path)
    assert str(path) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_no_such_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="there is no such file"):
        read_cluster(tmp_path / "none.toml")
    with pytest.raises(UserError, match="there is no such file"):
        read_cluster("none.toml")
    with pytest.raises(UserError, match="it cannot be read: Is a directory"):
        read_cluster(tmp_path)


def test_bytes_are_no_cluster(tmp_path: Path) -> None:
    path = tmp_path / "cluster.toml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="it is not valid TOML"):
        read_cluster(path)


def test_no_such_ready_cluster() -> None:
    with pytest.raises(UserError, match="there is no cluster 'ethernet-1gb'; did you mean 'ethernet-1g'") as raised:
        read_cluster("ethernet-1gb")
    assert "FILE.toml" in str(raised.value)
