"""A view beside a live writer: whole chunks, one run of what was appended, and nothing changed."""

from contextlib import suppress
from pathlib import Path
from random import Random

import pytest
from click.testing import CliRunner

from segments import Log, LogPolicy, StorageError
from segments.__main__ import main
from segments.disk import File, OsDisk, holder_of
from segments.recovery import recovery
from segments.segment import walk_headers
from segments.verify import verify
from segments.view import View
from tests.support.disk import FaultyDisk
from tests.support.logs import append, store_offset, truncate

FOLDER = "s"
POLICY = LogPolicy(max_segment_chunks=4, max_length_bytes=2_500)


class Writer:
    """Appends, rolls, retains, truncates, stores offsets, starts anew; one thing at a time."""

    def __init__(self, random: Random) -> None:
        self.random, self.disk = random, FaultyDisk()
        self.log = Log.open(FOLDER, POLICY, self.disk)
        self.chunks: list[tuple[int, int]] = []  # ids and ends of all that was appended

    def step(self) -> None:
        log = self.log
        match self.random.randrange(12):
            case 0:
                log.flush(with_checkpoint=True)
                self.disk.failures["remove"] = self.random.choice((0, 0, 1))
                with suppress(StorageError):  # some files stay for the next time
                    log.expire(0).run()
                self.disk.failures.clear()
            case 1:
                store_offset(log, b"c", max(0, log.committed_offset - 1))
            case 2:
                truncate(log, self.random.choice([id_ for id_, _ in self.chunks] or [0]))
            case 3:
                self.disk.capacity = 0
                with pytest.raises(StorageError):
                    append(log, [b"no room"])
                self.disk.capacity = None
            case 4 if self.random.random() < 0.2:
                log.close()
                self.log = Log.open(FOLDER, POLICY, self.disk)
            case _:
                bodies = [b"m" * self.random.randrange(80) for _ in range(3)]
                sequences = {b"p": len(self.chunks)}
                chunk_id = append(log, bodies, [b"v"] * 3, sequences=sequences)
                self.chunks.append((chunk_id, log.committed_offset))


class Beside:
    """The disk of a writer that goes on whenever somebody looks; only reading is possible."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer
        self.steps = 0

    def _goes_on(self) -> None:
        if self.steps and self._writer.random.random() < 0.3:
            self.steps -= 1
            self._writer.step()

    def open(self, path: str, *, writable: bool) -> File:
        assert not writable
        self._goes_on()
        return self._writer.disk.open(path, writable=False)

    def list(self, folder: str) -> list[str]:
        self._goes_on()
        return self._writer.disk.list(folder)

    def boot(self) -> str:
        return self._writer.disk.boot()


def chunks_of(view: View) -> list[tuple[int, int]]:
    plan = recovery.examine(view, FOLDER)
    assert (plan.steps, plan.losses) == ([], [])
    return [
        (header.chunk_id, header.next_offset)
        for segment in plan.segments
        for _, header in walk_headers(segment, segment.open())
    ]


@pytest.mark.parametrize("seed", range(60))
def test_it_is_one_run_of_what_was_appended(seed: int) -> None:
    writer = Writer(Random(seed))
    for _ in range(writer.random.randrange(60)):
        writer.step()
    beside, end = Beside(writer), writer.log.committed_offset
    beside.steps = 25
    with View(beside, FOLDER) as view:  # type: ignore[arg-type] - it has no more than a view needs
        seen = chunks_of(view)
        for _ in range(40):
            writer.step()
        writer.log.abandon()
        writer.disk.remove_folder(FOLDER)
        assert chunks_of(view) == seen
        assert list(verify(view, FOLDER)) == []
    assert not seen or seen[-1][1] >= end
    known = writer.chunks.index(seen[0]) if seen else 0
    assert writer.chunks[known : known + len(seen)] == seen


def test_it_refuses_to_be_changed() -> None:
    writer = Writer(Random(0))
    with (
        View(writer.disk, FOLDER) as view,
        pytest.raises(StorageError, match="a view changes nothing"),
    ):
        Log.open(FOLDER, POLICY, view)


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="cannot list"):
        View(OsDisk(), str(tmp_path / "gone"))


@pytest.mark.parametrize("command", ["verify", "dump"])
def test_commands_beside_a_writer(tmp_path: Path, command: str) -> None:
    log = Log.open(str(tmp_path), LogPolicy(max_segment_chunks=2))
    for _ in range(3):
        append(log, [b"a message"])
    store_offset(log, b"c", 1)
    if holder_of(str(tmp_path)) is None:
        pytest.skip("this system does not say who has locked a folder")
    for name in (f"{2:020}.segment", "tracking"):
        with (tmp_path / name).open("ab") as file:
            file.write(b"half of what is being appended")
    for name in (f"{3:020}.index", "checkpoint.tmp"):  # are being made
        (tmp_path / name).touch()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    result = CliRunner().invoke(main, [command, str(tmp_path)])
    assert result.exit_code == 0, result.output
    assert "2 segments, 3 chunks" in result.output or "offsets 2 to 2, 1 chunk" in result.output
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before
    log.abandon()
    if command == "verify":  # nobody is appending it any more
        assert CliRunner().invoke(main, [command, str(tmp_path)]).exit_code == 1
