"""What a node begins as: by what its folder and the store say."""

from dataclasses import replace
from pathlib import Path

import pytest

from segments.errors import CorruptError
from segments.store.cluster import Cluster, EarlierRoot
from segments.store.metadata_log import Held
from streamd.broker.nodes import folder
from streamd.broker.nodes.folder import Facts, NotOursError, Standing
from streamd.broker.tier.identity import UNKNOWN_TIER, begin_epoch
from streamd.broker.tier.restore import RESTORING, SCRATCH, RestoreError

CLUSTER = Cluster(revision=3, epoch=5, writer="me", start="s", tier="t", node="a")
OTHERS = replace(CLUSTER, writer="other", node="b")
NEW = Facts()
LEADER = Facts(writer="me", tier="t", has_catalog=True, has_streams=True)
STANDBY = Facts(writer="me", tier="t", is_scratch=True, has_catalog=True, has_streams=True)


def held(cluster: Cluster, *, is_earlier: bool = False) -> Held:
    return Held(cluster, "key", "etag", 0, EarlierRoot(cluster, None) if is_earlier else None)


def decided(facts: Facts, found: Held | None) -> Standing:
    return folder.decide(facts, found, "data", "store")


@pytest.mark.parametrize(
    ("facts", "cluster", "standing"),
    [
        (NEW, None, Standing.LEADS),
        (Facts(writer="me", has_catalog=True, has_streams=True), None, Standing.LEADS),
        (NEW, CLUSTER, Standing.STANDS_BY),
        (NEW, OTHERS, Standing.STANDS_BY),
        (LEADER, CLUSTER, Standing.LEADS),
        (LEADER, OTHERS, Standing.STANDS_BY),
        (STANDBY, OTHERS, Standing.STANDS_BY),
        (STANDBY, CLUSTER, Standing.STANDS_BY),
        (replace(STANDBY, over=5), OTHERS, Standing.TAKES_OVER),
        (replace(STANDBY, over=4), OTHERS, Standing.STANDS_BY),
        (replace(STANDBY, is_scratch=False, over=4), CLUSTER, Standing.TAKES_OVER),
        (Facts(writer="me", has_catalog=True), OTHERS, Standing.STANDS_BY),
    ],
)
def test_what_a_node_begins_as(facts: Facts, cluster: Cluster | None, standing: Standing) -> None:
    assert decided(facts, None if cluster is None else held(cluster)) is standing


@pytest.mark.parametrize("facts", [LEADER, STANDBY, replace(NEW, over=3), replace(NEW, tier="t")])
def test_a_node_of_a_cluster_begins_no_other(facts: Facts) -> None:
    with pytest.raises(NotOursError, match="is empty"):
        decided(facts, None)


@pytest.mark.parametrize("facts", [LEADER, STANDBY])
def test_a_node_of_a_cluster_joins_no_other(facts: Facts) -> None:
    with pytest.raises(NotOursError, match="is that of the cluster u"):
        decided(facts, held(replace(CLUSTER, tier="u")))


@pytest.mark.parametrize("tier", ["", UNKNOWN_TIER])
def test_streams_that_were_never_in_the_cluster_are_left_alone(tier: str) -> None:
    facts = replace(LEADER, tier=tier)
    with pytest.raises(RestoreError, match="has streams that were never in the tier"):
        decided(facts, held(OTHERS))
    assert decided(facts, held(CLUSTER)) is Standing.LEADS


def test_a_tier_of_an_earlier_version_is_begun_by_whose_it_is() -> None:
    assert decided(LEADER, held(CLUSTER, is_earlier=True)) is Standing.LEADS
    with pytest.raises(RestoreError, match="of an earlier version"):
        decided(NEW, held(OTHERS, is_earlier=True))


def test_a_leader_stands_down(tmp_path: Path) -> None:
    """Its files are moved; wherever that ends, the next start goes on with it."""
    data = str(tmp_path)
    (tmp_path / "streams" / "%2F" / "s").mkdir(parents=True)
    (tmp_path / "streams" / "%2F" / "s" / "0.segment").write_bytes(b"messages")
    (tmp_path / "catalog.sqlite").write_bytes(b"catalog")
    folder.stand_down(data)
    folder.stand_down(data)
    assert (tmp_path / SCRATCH).exists()
    assert not (tmp_path / "streams").exists()
    found = list((tmp_path / "earlier").glob("*/streams/*/*/*"))
    assert [path.read_bytes() for path in found] == [b"messages"]


def test_what_a_takeover_has_half_made_is_not_kept(tmp_path: Path) -> None:
    data = str(tmp_path)
    (tmp_path / "streams" / "%2F" / "s").mkdir(parents=True)
    folder.note_takeover(data, 4, "etag")
    assert (folder.look_into(data).over, folder.look_into(data).seen) == (4, "etag")
    folder.stand_down(data)
    assert not (tmp_path / RESTORING).exists()
    assert not (tmp_path / "earlier").exists()
    assert folder.look_into(data).is_scratch


def test_a_standby_is_replaced(tmp_path: Path) -> None:
    data = str(tmp_path)
    folder.stand_down(data)
    (tmp_path / "tails").mkdir()
    folder.note_takeover(data, 7, "")
    folder.be_replaced(data)
    facts = folder.look_into(data)
    assert (facts.over, facts.is_scratch) == (7, False)
    assert not (tmp_path / "tails").exists()


def test_an_empty_mark_is_of_the_operator(tmp_path: Path) -> None:
    (tmp_path / RESTORING).touch()
    assert folder.look_into(str(tmp_path)).over == -1


def test_which_node_it_is(tmp_path: Path) -> None:
    data = str(tmp_path)
    assert folder.look_into(data).file is None
    folder.note_node(data, "a", "t", "s1")
    facts = folder.look_into(data)
    assert facts.tier == "t"
    assert facts.file is not None
    assert (facts.file.node, facts.file.start) == ("a", "s1")
    (tmp_path / folder.NODE_FILE).write_text("{}")
    with pytest.raises(CorruptError, match=r"node\.json.*which node this is"):
        folder.look_into(data)


def test_a_copy_is_told_from_the_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    folder.note_node(one, "a", "t", "s1")
    file = folder.look_into(one).file
    assert file is not None
    assert file.is_of(one)
    assert not file.is_of(two)
    assert not replace(file, boot="another").is_of(one), "that may be another machine"


def test_the_folder_of_another_node_gets_a_new_identity(tmp_path: Path) -> None:
    """It may be a copy, of one that is there."""
    data = str(tmp_path)
    begin_epoch(data)
    folder.note_node(data, "a", "t", "s1")
    facts = folder.be_another(data, folder.look_into(data))
    assert (facts.writer, facts.file, facts.tier) == ("", None, "t")
    assert not folder.look_into(data).writer
