"""The guards: a rule of the code each, and a patch that takes it away. See `guards.py`.

A patch is small, and what is left of the code runs. Where several places keep one rule, one of them
is here.
"""

from tests.world.guards import Guard

_FLUSH = "segments/flush.py"
_JOURNAL = "segments/journal.py"
_LOG = "segments/log.py"
_RECOVERY = "segments/recovery/recovery.py"
_SCAN = "segments/recovery/segment_scan.py"
_REPLAY = "segments/tracking_replay.py"
_TRUNCATION = "segments/truncation.py"
_SEGMENT = "segments/segment.py"
_READER = "segments/reader.py"
_WRITER = "streamd/broker/streams/log_writer.py"
_MAINTENANCE = "streamd/broker/streams/log_maintenance.py"
_STREAM = "streamd/broker/streams/stream.py"
_LIFE = "streamd/broker/streams/log_life.py"
_LOGS = "streamd/broker/stream_logs.py"
_ASSEMBLY = "streamd/broker/streams/chunk_assembly.py"
_WAITERS = "streamd/broker/streams/waiters.py"
_QUEUE = "streamd/connections/ready_queue.py"
_PUBLISHERS = "streamd/connections/stream/publishers.py"
_PUBLISHER = "streamd/connections/stream/publisher.py"
_SUBSCRIPTIONS = "streamd/connections/stream/subscriptions.py"
_DELIVERY = "streamd/connections/stream/delivery.py"
_AMQP = "streamd/connections/amqp091/delivery.py"
_MESSAGES = "streamd/connections/message_delivery.py"
_AMQP10_LINKS = "streamd/connections/amqp10/delivery.py"
_AMQP10_FILTERS = "streamd/connections/amqp10/source_filters.py"
_AMQP10_PUBLISHER = "streamd/connections/amqp10/publisher.py"
_AMQP10_SESSION = "streamd/connections/amqp10/session.py"
_AMQP10_WIRE = "streamd/wire/amqp10/session.py"
_AMQP10_TESTS = "tests/connections/amqp10"
_PRODUCER = "clients/producer.py"
_CONSUMER = "clients/consumer.py"
_PLACE = "clients/position.py"
_CONNECTION = "clients/connection.py"
_COMING_BACK = "clients/reconnecting.py"
_SEARCH = "segments/search/search.py"
_WAL = "streamd/broker/tier/wal.py"
_WAL_READING = "streamd/broker/tier/wal_reading.py"
_CLAIMS = "streamd/broker/tier/claims.py"
_FOLDING = "streamd/broker/tier/folding.py"
_METADATA_LOG = "segments/store/metadata_log.py"
_UNLOGGED = "streamd/broker/catalog/unlogged.py"
_OWNERSHIP = "streamd/broker/tier/ownership.py"
_MANIFEST = "streamd/broker/tier/stream_manifest.py"
_HOST = "streamd/broker/virtual_host.py"
_USERS = "streamd/auth/users.py"
_GROUPS = "streamd/broker/streams/groups.py"
_KEYS = "segments/derived/key_files.py"
_SCHEDULE = "segments/derived/key_schedule.py"
_FILTERS = "segments/filter_index.py"

# -- what is on the device, and when: durability.md, M2, M3, M10

_DURABLE = [
    Guard(
        "segments are synced by a flush",
        _FLUSH,
        "        for file in self.files:\n            file.sync()",
        "        for file in self.files[len(self.files) :]:\n            file.sync()",
    ),
    Guard(
        "a segment that was sealed is synced, too",
        _FLUSH,
        "        running, self.sealed = self.sealed, {}",
        "        self.release()\n        running: dict[Segment, File] = {}",
    ),
    Guard(
        "an index that was sealed while a flush ran is synced by the next one",
        _FLUSH,
        "                if path != growing:\n",
        "                if path:\n",
        by="tests/segments/test_flush.py::"
        "test_an_index_that_was_sealed_while_a_flush_ran_is_synced_by_the_next_one",
    ),
    Guard(
        "the names of new segments are synced before a flush ends",
        _FLUSH,
        "if self._rewrite_journal() or self.has_new_journal or has_new_names:",
        "if self._rewrite_journal() or self.has_new_journal:",
        by="tests/segments/test_flush.py::test_names_that_a_killed_process_left",
    ),
    Guard(
        "the name of a new journal is synced before a flush ends",
        _FLUSH,
        "if self._rewrite_journal() or self.has_new_journal or has_new_names:",
        "if self._rewrite_journal() or has_new_names:",
        by="tests/segments/test_flush.py::"
        "test_the_name_of_a_journal_is_synced_with_its_first_offset",
    ),
    Guard(
        "what a killed process left is synced by the first flush",
        _FLUSH,
        "        for path in self.found:\n",
        "        for path in self.found[len(self.found) :]:\n",
    ),
    Guard(
        "the name of a segment that a killed process left is synced",
        _FLUSH,
        "self._has_new_names = not (plan.knows_newest and plan.has_life)",
        "self._has_new_names = not plan.has_life",
        by="tests/segments/test_flush.py::test_names_that_a_killed_process_left",
    ),
    Guard(
        "a journal that a killed process left is synced",
        _JOURNAL,
        "        if self.exists and not is_flushed:\n",
        "        if self.exists and not is_flushed and not self.records:\n",
        by="tests/segments/test_flush.py::"
        "test_offsets_that_a_killed_process_left_are_flushed_on_opening",
    ),
    Guard(
        "what a failed sync may have left out of a segment is written again",
        _LOG,
        "            plan.write_again(disk)\n",
        "",
        by="tests/segments/test_flush.py::test_what_a_failed_sync_has_left_is_written_again",
    ),
    Guard(
        "what a failed sync may have left out of a journal is written again",
        _JOURNAL,
        "            write_again(self._disk, self._path, 0)  # see `Plan.write_again`\n",
        "",
        by="tests/segments/test_flush.py::test_what_a_failed_sync_has_left_is_written_again",
    ),
    Guard(
        "a file is synced before it replaces another",
        "segments/atomic_write.py",
        "        if is_synced:\n            file.sync()\n",
        "",
    ),
    Guard(
        "a checkpoint says nothing of bytes that are not synced",
        _FLUSH,
        "        if only_sealed:\n            reached = (FILE_HEADER_SIZE, 0, base)\n",
        "",
        by="tests/segments/recovery/test_recovery.py::TestTrackingJournal::"
        "test_a_rewritten_journal_still_knows_what_was_safe",
    ),
    Guard(
        "the folder of a new stream is on the device before the catalog knows it",
        _LOGS,
        "for parent in itertools.islice(Path(folder).parents, 4):",
        "for parent in itertools.islice(Path(folder).parents, 0):",
    ),
    Guard(
        "what is written while a flush runs is not confirmed by it",
        _MAINTENANCE,
        "            if log.commits_on_flush:\n                writer.pause()\n",
        "",
    ),
    Guard(
        "with `always` nothing is confirmed before its flush",
        _WRITER,
        "if log.commits_on_flush and not log.flushing.is_flushed:",
        "if log.commits_on_flush and self.is_paused:",
    ),
    Guard(
        "with `always` readers see nothing before its flush",
        _LOG,
        "            self.flushing.held.append(appended)\n",
        "            self._commit(appended)\n",
    ),
    Guard(
        "a flush shows what it has covered, and nothing later",
        _FLUSH,
        "        num_shown = flush.num_held if shows else 0\n",
        "        num_shown = len(self.held) if shows else 0\n",
        by="tests/segments/test_flush.py::"
        "test_what_comes_while_a_flush_runs_is_shown_by_the_next_one",
    ),
    Guard(
        "with `interval` a stream is flushed every second",
        "streamd/broker/streams/flusher.py",
        "                self._work.set()\n            if opened",
        "            if opened",
        by="tests/broker/streams/test_lifecycle.py::test_a_flush_waits_for_a_thread",
    ),
    Guard(
        "a flush that failed is never repeated",
        _FLUSH,
        "            writer.failed = writer.failed or error\n",
        "",
        by="tests/segments/test_flush.py::"
        "test_a_sync_that_fails_behind_the_messages_is_not_repeated",
    ),
    Guard(
        "a stream whose flush failed takes no more messages",
        _MAINTENANCE,
        "        if failure is not None:\n            writer.fail(str(failure))\n",
        "",
        by="tests/broker/streams/test_faults.py::test_what_is_told_of_a_stored_offset_is_flushed",
    ),
    Guard(
        "names that a flush could not sync are synced by the next one",
        _FLUSH,
        "            self._has_new_names = self._has_new_names or flush.has_new_names\n",
        "",
        by="tests/segments/test_flush.py::"
        "test_names_that_a_flush_had_no_descriptor_for_are_synced_by_the_next_one",
    ),
    Guard(
        "what a failed append left is cut off",
        _SEGMENT,
        "            self._has_rest = True\n"
        "            with suppress(StorageError):  # or before the next append\n"
        "                self._cut_rest()\n",
        "",
        by="tests/segments/test_log.py::TestRefusals::test_and_before_its_segment_is_sealed",
    ),
]

# -- gaps, epochs, checkpoints and what opening a log makes of its files: M3 to M6, M12

_OPENED = [
    Guard(
        "a log goes on behind a gap when the machine was down",
        _RECOVERY,
        "        _go_on_behind_gap(plan)\n\n",
        "        pass\n\n",
        "ST3",
    ),
    Guard(
        "before the first message it is noted that readers may see what is lost",
        _LOG,
        "            put_mark(self._disk, self.folder, AHEAD, self._disk.boot())\n"
        "            self._disk.sync_folder",
        "            self._disk.sync_folder",
        "ST3",
        by="tests/segments/test_gaps.py::TestPowerFailure::"
        "test_the_mark_is_on_the_device_before_the_first_message_is_shown",
    ),
    Guard(
        "that note is on the device before the first message",
        _LOG,
        "            self._disk.sync_folder(self.folder)\n            self.awaits_mark",
        "            self.awaits_mark",
        "ST3",
        by="tests/segments/test_gaps.py::"
        "TestPowerFailure::test_the_mark_is_on_the_device_before_the_first_message_is_shown",
    ),
    Guard(
        "the note stays until the log goes on behind the gap",
        _LOG,
        "            log.flush(with_checkpoint=True)\n            log._forget_crash(plan)\n",
        "            log._forget_crash(plan)\n            log.flush(with_checkpoint=True)\n",
        by="tests/segments/test_gaps.py::TestPowerFailure::"
        "test_nothing_is_known_of_what_is_gone_however_often_it_crashes",
    ),
    Guard(
        "the end of a log is found by the checksums of its data",
        "segments/chunk_check.py",
        "if _data_crc(file, position + header.data_start, header.data_size) != header.data_crc:",
        "if header.data_size < 0:",
        by="tests/segments/test_main.py::test_every_flipped_byte_is_found",
    ),
    Guard(
        "the end of a log is found by the checksums of its headers",
        "segments/chunk_check.py",
        "    if is_strict:\n        check_header(file, position, header, raw)\n    elif",
        "    if not is_strict and",
        by="tests/segments/recovery/test_recovery.py::"
        "test_what_follows_damage_that_was_not_on_the_device_goes_into_quarantine",
    ),
    Guard(
        "what is behind the end of a log is no part of it",
        _RECOVERY,
        "        if scanner.is_end:\n",
        "        if scanner.is_end and not bases:\n",
    ),
    Guard(
        "a log that ends at a fault is cut there",
        _SCAN,
        "                    plan.steps.append(cut)\n",
        "",
    ),
    Guard(
        "an index that does not fit its segment is made again",
        _SCAN,
        "if INDEX_SUFFIX not in self._suffixes or index != self._read_index(start):",
        "if INDEX_SUFFIX not in self._suffixes:",
    ),
    Guard(
        "a segment without its header gets it",
        _SCAN,
        '                plan.steps.append(WriteHeader(file.path, "a crash had lost it"))\n',
        "                pass\n",
        by="tests/segments/recovery/test_recovery.py::"
        "test_an_emptied_newest_segment_keeps_its_base_offset",
    ),
    Guard(
        "files that were not made to the end are removed",
        _RECOVERY,
        "        if name.endswith(TEMPORARY_SUFFIX)\n    ]",
        "        if name == TEMPORARY_SUFFIX\n    ]",
        by="tests/segments/recovery/test_recovery.py::test_temporary_files_are_swept",
    ),
    Guard(
        "indexes without a segment are removed",
        _RECOVERY,
        "        for base, suffix in orphans\n    ]",
        "        for base, suffix in orphans[len(orphans) :]\n    ]",
    ),
    Guard(
        "an empty segment before a gap is removed",
        _RECOVERY,
        "        plan.empty.append(plan.segments.pop())\n",
        "        plan.segments.pop()\n",
    ),
    Guard(
        "an offset in a gap leads to the first message behind it",
        "segments/offset_lookup.py",
        "        number = min(number + 1, len(segments) - 1)\n",
        "        pass\n",
        "K4",
    ),
    Guard(
        "what a gap leaves out is no loss",
        "segments/gaps.py",
        "    return min(following, offset + (following - offset) % OFFSET_GAP)",
        "    return following",
    ),
    Guard(
        "a stored offset is cut to the log's end",
        _REPLAY,
        "has_cut = restorer.tracking.cut_offsets(ends_at)",
        "has_cut = False",
        "ST1",
        by="tests/segments/test_log.py::TestTracking::test_offsets_survive",
    ),
    Guard(
        "sequences of lost chunks go with them",
        _REPLAY,
        "        elif record.next_offset <= self._ends_at:",
        "        elif record.next_offset >= 0:",
        by="tests/segments/test_flush.py::test_a_snapshot_that_knows_lost_chunks_lets_nothing_go",
    ),
    Guard(
        "a journal that knew lost chunks is written anew",
        _REPLAY,
        "if has_cut or restorer.snapshot_was_ahead or (",
        "if has_cut or (",
        by="tests/segments/test_flush.py::test_a_snapshot_that_knows_lost_chunks_lets_nothing_go",
    ),
    Guard(
        "a snapshot of chunks on the device stays in a journal that is written anew",
        _JOURNAL,
        "if self._safe.next_offset:",
        "if self._safe.next_offset < 0:",
        by="tests/segments/recovery/test_recovery.py::"
        "TestTrackingJournal::test_a_rewritten_journal_still_knows_what_was_safe",
    ),
    Guard(
        "a snapshot is safe when its chunks are on the device",
        _JOURNAL,
        "        if is_safe:\n            self._safe",
        "        if is_safe or self.exists:\n            self._safe",
        by="tests/segments/test_log.py::"
        "TestJournalOnAFailingDisk::test_a_flush_of_sealed_segments_covers_nothing_of_what_is_behind_them",
    ),
    Guard(
        "chunks behind the snapshot say what its publishers have sent since",
        _REPLAY,
        "            restorer.replay(segment)\n",
        "            pass\n",
    ),
    Guard(
        "a torn record of the journal is cut off",
        _JOURNAL,
        "            file.truncate(self._size)\n",
        "",
        by="tests/segments/test_log.py::"
        "TestJournalOnAFailingDisk::test_a_torn_record_is_told_of_once",
    ),
    Guard(
        "offsets wait while the journal is written anew",
        _JOURNAL,
        "        if self._rewrite is not None or not self.tracking.has_pending:",
        "        if not self.tracking.has_pending:",
        by="tests/segments/test_log.py::"
        "TestJournalOnAFailingDisk::test_what_is_stored_while_the_journal_is_rewritten",
    ),
    Guard(
        "offsets that waited for the journal are not taken for written",
        _WRITER,
        "                if not (has_offsets and tracking.has_pending):  # or the journal is "
        "rewritten\n                    self._num_written = asked\n",
        "                self._num_written = asked\n",
        by="tests/broker/streams/test_truncate.py::"
        "TestStoredOffsets::test_one_that_is_set_while_the_journal_is_rewritten_is_in_it",
    ),
    Guard(
        "offsets are written with the writer's next turn",
        _WRITER,
        "            if has_offsets:\n                self._log.journal.write_pending",
        "            if has_offsets and not self._log.journal.exists:\n"
        "                self._log.journal.write_pending",
    ),
]

# -- truncation: M11

_TRUNCATED = [
    Guard(
        "what is kept of a segment is synced before it gets its name",
        _TRUNCATION,
        "            self._next = end\n            copy.sync()\n",
        "            self._next = end\n",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "a truncation says that the log begins with its copy",
        _TRUNCATION,
        "            disk.create(self.segment.path(BEGIN_SUFFIX)).close()\n",
        "            pass\n",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "that is on the device before the copy gets its name",
        _TRUNCATION,
        "        disk.sync_folder(self.segment.folder)\n\n    def _copy_data",
        "\n    def _copy_data",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "the name of the copy is on the device before a truncation is answered",
        _TRUNCATION,
        "        self.segment.disk.sync_folder(self.segment.folder)\n\n    def discard",
        "\n    def discard",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "an opening goes by where a truncation lets the log begin",
        _RECOVERY,
        "    begins_at = beginning(suffixes)\n",
        "    begins_at = 0\n",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "an opening goes by the first offset of the checkpoint",
        _RECOVERY,
        "        bases = _without(plan, folder, suffixes, begins_at, _OUTLIVED)\n",
        "",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "segments go when a checkpoint says that they are gone",
        "segments/retention.py",
        "            write_checkpoint(self.disk, self.folder, self.checkpoint)\n"
        "        except StorageError as error:",
        "            pass\n        except StorageError as error:",
        by="tests/segments/test_truncation.py::test_a_crash_at_any_moment",
    ),
    Guard(
        "without room for a checkpoint a name says that segments are gone",
        "segments/retention.py",
        "            self._mark_beginning()\n",
        "",
        by="tests/segments/test_retention.py::"
        "test_what_goes_from_a_full_disk_is_never_told_as_lost",
    ),
    Guard(
        "that name is on the device before segments go",
        "segments/retention.py",
        "        self.disk.sync_folder(self.folder)\n",
        "",
        by="tests/segments/test_retention.py::"
        "test_what_goes_from_a_full_disk_is_never_told_as_lost",
    ),
    Guard(
        "segments stay while the tracking may have to be read from them",
        _MAINTENANCE,
        "        if not is_covered(offset):  #",
        "        if offset < 0:  #",
        by="tests/broker/streams/test_truncate.py::test_no_room_for_what_is_known_of_publishers",
    ),
    Guard(
        "a truncation flushes before it cuts",
        _MAINTENANCE,
        "        await self.flush(with_checkpoint=True, seals=offset > "
        "log.segments.shown[-1].base_offset)\n",
        "        self._seal()\n",
        by="tests/broker/streams/test_truncate.py::test_publishers_are_still_known",
    ),
    Guard(
        "a truncation waits for who works on what goes",
        _MAINTENANCE,
        "                if not self.held.has_before(start.offset):\n                    try:",
        "                if True:\n                    try:",
        by="tests/broker/streams/test_truncate.py::"
        "test_it_waits_for_work_that_began_while_it_waited_for_its_turn",
    ),
    Guard(
        "a reader of what is truncated goes on where the log begins",
        _LOG,
        "        self.segments.begins_at = offset\n",
        "",
        "T7",
        by="tests/broker/streams/test_truncate.py::test_readers_go_on_where_it_begins",
    ),
]

# -- publishing

_PUBLISHED = [
    Guard(
        "what a publisher with a name sends again is stored once",
        _ASSEMBLY,
        "            new = without_duplicates(entries, self._sequence(reference))\n",
        "            pass\n",
    ),
    Guard(
        "duplicates are found among what is written together",
        _ASSEMBLY,
        "        if reference in self._sequences:\n            return self._sequences[reference]\n",
        "",
    ),
    Guard(
        "duplicates are found among what waits for its flush",
        "segments/tracking.py",
        "        ahead = self.ahead.get(reference)\n",
        "        ahead = None\n",
    ),
    Guard(
        "publishing ids travel with their messages",
        _ASSEMBLY,
        "                self.builder.set_sequence(reference, last)\n",
        "",
    ),
    Guard(
        "a sequence that readers see is the last of its publisher",
        _LOG,
        "            if chunk.sequences:\n",
        "            if len(chunk.sequences) > 1:\n",
    ),
    Guard(
        "messages stay queued in their order while the disk is full",
        _WRITER,
        "            if error.is_temporary:\n                self.wait_for(error)",
        "            if error.is_temporary and not self._queue:\n"
        "                self.wait_for(error)",
        by="tests/broker/streams/test_faults.py::test_a_full_disk_holds_one_stream_up",
    ),
    Guard(
        "a stream with a shortage is tried again",
        "streamd/broker/streams/open_log.py",
        "                await trio.sleep(FULL_DISK_SECONDS)\n"
        "                if self.log.flushing.obstacle:\n"
        "                    await self.maintenance.flush()\n"
        "                self.work.set()\n",
        "                await trio.sleep(FULL_DISK_SECONDS)\n",
        by="tests/broker/streams/test_faults.py::test_a_full_disk_holds_one_stream_up",
    ),
    Guard(
        "what is published before a log is open is written when it is",
        _LIFE,
        "        self._early.hand_over(opened.writer.store_offset, self._publish)\n",
        "",
    ),
    Guard(
        "behind a message that was refused nothing of its publisher is stored",
        _PUBLISHER,
        "        self.is_stopped = bool(self.reference)\n",
        "",
        "K1",
    ),
    Guard(
        "of a frame nothing is stored behind a message that was refused",
        _PUBLISHERS,
        "        elif refused and publisher.reference:\n",
        "        elif refused and publisher.reference and not publisher.published:\n",
        "K1",
    ),
    Guard(
        "the answer to a query for a sequence counts what was published before",
        _PUBLISHERS,
        "                await stream.settled_in_time()"
        "  # what this connection sent before counts\n",
        "",
    ),
    Guard(
        "an answer waits for a store that is not in trouble",
        _STREAM,
        "        with trio.move_on_after(seconds):\n            return await self.settled()",
        "        with trio.move_on_after(0):\n            return await self.settled()",
        by="tests/broker/tier/test_wal.py::test_offsets_are_as_they_were_answered",
    ),
    Guard(
        "a stored offset in an answer is as safe as a confirmed message",
        _SUBSCRIPTIONS,
        "                found = stream.stored_offset(command.reference)\n",
        "                found = stream.log.journal.tracking.offset(command.reference.encode())\n",
        by="tests/broker/streams/test_faults.py::"
        "test_what_is_told_of_a_stored_offset_is_on_a_full_disk",
    ),
]

# -- reading

_READ = [
    Guard(
        "a consumer that comes to wait during a flush is woken by it",
        _WRITER,
        "is_noted = bool(self._waiters.by_key) or log.commits_on_flush or log.awaits_store\n",
        "is_noted = bool(self._waiters.by_key)\n",
    ),
    Guard(
        "consumers with a filter are woken by what they want",
        _WAITERS,
        "            waiters |= self.by_key[key]\n",
        "            pass\n",
    ),
    Guard(
        "what is committed in parts wakes for each part",
        _WAITERS,
        "        while self._noted and self._noted[0][0] <= committed_offset:\n",
        "        while self._noted:\n",
        by="tests/broker/declared/test_several_properties.py::"
        "test_a_commit_of_a_part_wakes_for_that_part_alone",
    ),
    Guard(
        "consumers that wait are woken by what is committed",
        _WRITER,
        "            self._waiters.wake(log.committed_offset)\n        if log.segments",
        "            pass\n        if log.segments",
    ),
    Guard(
        "a consumer that waits goes to the new segment, or is woken",
        _QUEUE,
        "        if not self.is_at_end:\n            self.stop_waiting()\n"
        "            self.check()\n\n",
        "        self.stream.waiters.remove(self)\n\n",
    ),
    Guard(
        "a consumer that got credit is looked at again",
        _DELIVERY,
        "        self.credit += credit\n        self.check()\n",
        "        self.credit += credit\n",
    ),
    Guard(
        "a reader goes as far as what is committed",
        _READER,
        "        return self.next_offset >= self._log.committed_offset\n",
        "        return self.next_offset >= self._log.next_offset\n",
    ),
    Guard(
        "a reader does not leave the chunks behind a full answer out",
        _READER,
        "                size -= self._give_back(chunks.pop())\n",
        "                chunks.pop()\n",
        by="tests/segments/test_runs.py::test_the_same_messages_as_chunk_by_chunk",
    ),
    Guard(
        "an index says nothing of chunks before a selector was known",
        _READER,
        "        if filters is None or segment.damage or self.next_offset < matcher.since:\n"
        "            if filters is None:",
        "        if filters is None or segment.damage:\n            if filters is None:",
        by="tests/segments/test_filter_index.py::test_chunks_from_before_are_never_skipped",
    ),
    Guard(
        "a segment is skipped if nothing in it may match",
        _READER,
        "            if not is_next or next_match(filters, matcher, 0) < len(filters.positions):\n",
        "            if not is_next:\n",
    ),
    Guard(
        "the newest segment's filters are all of its chunks'",
        _SEGMENT,
        "        if not segment.num_chunks:\n            segment.filters = self._filters\n",
        "        segment.filters = self._filters\n",
        by="tests/segments/test_reader.py::"
        "test_chunks_from_before_a_start_match_when_their_segment_has_grown",
    ),
    Guard(
        "a filter file says which content it is of",
        _FILTERS,
        "        if (size, base, chunks, content) != shape:\n",
        "        if base != shape.base_offset:\n",
        by="tests/segments/derived/test_derived_files.py::"
        "TestFilterFilesOfOtherContent::test_what_a_power_failure_cut_and_others_replaced",
    ),
    Guard(
        "the filter file of a segment that grows again is removed",
        _RECOVERY,
        "        for suffix in DERIVED_SUFFIXES\n        if suffix in suffixes[last",
        "        for suffix in DERIVED_SUFFIXES[:0]\n        if suffix in suffixes[last",
        by="tests/segments/derived/test_derived_files.py::"
        "TestFilterFilesOfOtherContent::test_what_a_power_failure_cut_and_others_replaced",
    ),
    Guard(
        "chunks whose values are not known are looked at",
        _FILTERS,
        "            self.uncertain.append(ordinal)\n            return\n",
        "            return\n",
    ),
    Guard(
        "an AMQP consumer gets nothing before the offset that it asked for",
        _MESSAGES,
        "                if offsets[place] >= first\n",
        "",
    ),
    Guard(
        "an AMQP consumer reads on when all that was read is sent",
        _MESSAGES,
        "        if self._read or reader is None:\n            return\n",
        "        if reader is None:\n            return\n        self._read.clear()\n",
        by="tests/connections/amqp091/test_messages.py::TestConsuming::test_from_an_offset",
    ),
    Guard(
        "an AMQP consumer is looked at again when it has acknowledged",
        _AMQP,
        "        self._credit += count\n        self.check()\n",
        "        self._credit += count\n",
    ),
    Guard(
        "what an AMQP consumer had to give back is read again",
        _MESSAGES,
        "            self._first_offset = self._read[0][0]\n",
        "",
        by="tests/connections/amqp091/test_cold.py::test_large_messages_to_one_that_takes_few",
    ),
    Guard(
        "an AMQP consumer is checked when its reading is over",
        _MESSAGES,
        "        if not self._is_reading:  # else it is checked when its turn is over\n"
        "            super().check()\n",
        "        super().check()\n",
        by="tests/connections/amqp091/test_pace.py::"
        "test_acknowledgements_that_come_while_a_selector_is_at_work",
    ),
]

# -- searches, keys

_SEARCHED = [
    Guard(
        "chunks that no key table knows are searched",
        _SEARCH,
        "        blocks += [range(at, min(last, at + size)) for at in range(end, last, size)]\n",
        "        blocks += [range(0)]\n",
    ),
    Guard(
        "a key table says how far it goes",
        _KEYS,
        "    if table.head.end_chunk != job.end.num_chunks or table.head.properties != "
        "job.properties:\n",
        "    if table.head.properties != job.properties:\n",
        by="tests/segments/derived/test_key_files.py::"
        "TestOfSealedSegments::test_a_table_that_ends_earlier_is_not_the_one_that_was_asked_for",
    ),
    Guard(
        "a key table says which content it is of",
        _KEYS,
        "    if (head.size, head.base_offset, head.end_chunk, head.content_crc) != shape or "
        "head.first_chunk:\n",
        "    if head.base_offset != shape.base_offset:\n",
        by="tests/segments/derived/test_key_files.py::"
        "TestOfSealedSegments::test_the_same_sizes_and_times",
    ),
    Guard(
        "key tables of a segment that grows are asked together",
        _SCHEDULE,
        "        kept = [table for table in known.tables if table.position not in job.tables]\n",
        "        kept = []\n",
        by="tests/broker/streams/test_key_indexer.py::"
        "test_a_steady_stream_is_indexed_while_it_grows",
    ),
    Guard(
        "a search does not wait for what is beside a segment that is gone",
        _SEARCH,
        "                    if error.cached.is_gone:  # and what is beside it never comes\n",
        "                    if False:\n",
        by="tests/segments/search/test_handed.py::"
        "test_a_segment_leaves_the_log_while_its_index_is_fetched",
    ),
    Guard(
        "in the place of a segment that has left the log others are looked for",
        "segments/search/handed.py",
        "        if answer.files.cold is None:\n",
        "        if False:\n",
        by="tests/segments/search/test_handed.py::"
        "test_what_is_in_the_place_of_a_segment_that_has_left_the_log_is_asked_for",
    ),
    Guard(
        "a search is of messages as they were when it began",
        _SEARCH,
        "        end = log.segments.gaps.before(log.committed_offset)\n",
        "        end = log.segments.gaps.before(log.segments.shown[-1].base_offset)\n",
    ),
    Guard(
        "a segment that was truncated is searched where its rest is",
        _SEARCH,
        "        if self._log.keeps(segment):\n            self.looked_at.messages_lost += segment",
        "        if True:\n            self.looked_at.messages_lost += segment",
        by="tests/segments/search/test_cold.py::test_what_is_left_of_a_truncated_segment_is_found",
    ),
]

# -- files that can be made again: M7

_DERIVED = [
    Guard(
        "what an index says is compared with the chunks",
        "segments/chunk_search.py",
        "return find(_Records(segment, index, file if segment.cold is None else None))",
        "return find(_Records(segment, index, None))",
        by="tests/segments/search/test_faults.py::test_a_wrong_index_file_hides_nothing",
    ),
    Guard(
        "an index is not trusted where it does not end with its segment",
        _SCAN,
        "        if found_end != end or not is_end:\n            return False\n",
        "",
        by="tests/segments/recovery/test_recovery.py::"
        "test_every_size_of_the_index_gives_everything_back",
    ),
    Guard(
        "a filter file is believed if its checksum is right",
        _FILTERS,
        "        if _CRC.pack(crc32(view, crc32(fields))) != raw[_CRC_AT:_BODY]:\n",
        "        if not raw:\n",
        by="tests/segments/test_filter_index.py::test_any_damage_of_the_file_is_found",
    ),
    Guard(
        "a block of a key table is believed if its checksum is right",
        "segments/keys/table.py",
        "    if len(block) != KEY_BLOCK_SIZE or _CRC.pack(crc32(content, seed)) != "
        "block[_CONTENT:]:\n",
        "    if len(block) != KEY_BLOCK_SIZE:\n",
        by="tests/segments/derived/test_key_files.py::"
        "TestOfSealedSegments::test_what_is_wrong_is_told",
    ),
    Guard(
        "a chunk that is searched reaches to the next that the index has",
        "segments/search/span_reader.py",
        "            if is_there and (table.is_sparse or self._reaches_to_the_next(header, "
        "ordinal)):\n",
        "            if is_there:\n",
        by="tests/segments/search/test_faults.py::"
        "test_a_wrong_index_file_beside_a_key_index_hides_nothing",
    ),
    Guard(
        "the chunk with which a search begins is the one that the index has",
        _SEARCH,
        "            if not table.is_certain:\n"
        "                _confirm(segment, table, first, low)\n",
        "",
        by="tests/segments/search/test_faults.py::"
        "test_a_wrong_index_file_beside_a_key_index_hides_nothing_from_an_offset_on",
    ),
    Guard(
        "a key file that cannot be read is asked no more",
        "segments/keys/index.py",
        "                self.fault = str(error)\n            return None\n",
        "                self.fault = str(error)\n            return Held({}, {})\n",
        by="tests/segments/derived/test_key_files.py::"
        "TestOfSealedSegments::test_a_shortage_of_descriptors_is_no_fault_of_the_file",
    ),
]

# -- the client library

_CLIENTS = [
    Guard(
        "what was not confirmed is sent again on the next connection",
        _PRODUCER,
        "        self._waiting[:0] = missing\n",
        "",
    ),
    Guard(
        "what is sent again goes before what is new",
        _PRODUCER,
        "        self._waiting[:0] = missing\n",
        "        self._waiting += missing\n",
        by="tests/clients/test_numbers.py::"
        "TestProducers::test_say_of_each_message_what_became_of_it",
    ),
    Guard(
        "without a name nothing counts as stored after a lost connection",
        _PRODUCER,
        "            if number > sequence or not sequence\n",
        "            if number > (sequence or self.last_publishing_id)\n",
        "K5",
    ),
    Guard(
        "0 also says that nothing is stored",
        _PRODUCER,
        "            if number > sequence or not sequence\n",
        "            if number > sequence\n",
        "K5",
        by="tests/clients/test_numbers.py::TestProducers::test_do_not_take_zero_for_a_confirm",
    ),
    Guard(
        "a producer with a name goes on behind what the server has",
        _PRODUCER,
        "            self._is_new, self.last_publishing_id = False, sequence\n",
        "            self._is_new = False\n",
        by="tests/clients/test_client.py::"
        "TestNamedProducers::test_what_is_sent_again_is_stored_once",
    ),
    Guard(
        "a producer's flush waits for what is confirmed",
        _PRODUCER,
        "        while self._lacks(flush):\n",
        "        while self._waiting:\n",
    ),
    Guard(
        "a refused message is reported",
        _PRODUCER,
        "                self._refuse([(number, code) for number, code in faults])\n",
        "",
        "K2",
    ),
    Guard(
        "a producer with a name ends with what is refused",
        _PRODUCER,
        "        if self.name and faults:\n",
        "        if self.name and not faults:\n",
        "K1",
    ),
    Guard(
        "a consumer goes on behind the last chunk that arrived",
        _CONSUMER,
        "                self._place.reached(max(first, behind), behind)\n",
        "                pass\n",
    ),
    Guard(
        "messages before the offset that was asked for are not handed out",
        _CONSUMER,
        "        self._first_offset = start.value if is_known else 0\n",
        "        self._first_offset = 0\n",
        by="tests/clients/test_position.py::TestSingleActiveConsumers::test_go_on_where_they_were",
    ),
    Guard(
        "credit that became due while some was sent is sent, too",
        _CONSUMER,
        "        self._is_granting = False\n        if not is_lost or connection is not "
        "self._connection:\n            self._grant()",
        "        self._is_granting = False\n"
        "        if is_lost and connection is self._connection:\n"
        "            self._grant()",
        by="tests/clients/test_limits_of_use.py::"
        "test_credit_that_becomes_due_while_other_credit_is_sent",
    ),
    Guard(
        "an offset whose storing was lost with the connection is stored again",
        _CONSUMER,
        "        await self._store_again(connection)\n",
        "",
        "ST3",
        by="tests/clients/test_position.py::TestStoredOffsets::test_are_stored_again_once",
    ),
    Guard(
        "an offset is not stored again behind one that is further",
        _CONSUMER,
        "            if offset is None or (answer.code == OK and answer.offset >= offset):\n",
        "            if offset is None:\n",
        by="tests/clients/test_position.py::"
        "TestSingleActiveConsumers::test_go_on_behind_what_another_has_stored",
    ),
    Guard(
        "all are opened again before a new connection is used",
        _COMING_BACK,
        "        await self.consumers.reopen(connection)\n",
        "",
    ),
    Guard(
        "a frame is sent whole, or not at all",
        _CONNECTION,
        "            with anyio.CancelScope(shield=True) as scope:\n                try:",
        "            with anyio.CancelScope() as scope:\n                try:",
        by="tests/clients/test_cancellation.py::test_at_each_step",
    ),
    Guard(
        "a question whose answer was lost is asked again",
        _COMING_BACK,
        "            except ConnectionLost:\n                if connection.lost is None:\n"
        "                    raise\n\n    @asynccontextmanager",
        "            except ConnectionLost:\n                raise\n\n    @asynccontextmanager",
        "K13",
        by="tests/clients/test_numbers.py::test_questions_are_asked_again",
    ),
]

# -- the tier: tier.md

_STORED = [
    Guard(
        "a store without the last entry that is known is not this server's tier",
        _CLAIMS,
        "        raise _wrong(store, held.cluster) from None\n",
        "        return\n",
        "T2",
    ),
    Guard(
        "a tier that another server has taken over is left to it",
        _CLAIMS,
        "    if cluster.writer != me.name:\n        raise FencedError(cluster)\n",
        "",
        by="tests/broker/tier/test_claims.py::TestClaim::test_anothers_is_not_taken",
    ),
    Guard(
        "a fenced server stays fenced",
        "streamd/broker/tier/ownership.py",
        "        if self.state is TierState.FENCED:\n"
        "            return  # an answer from before that was late\n",
        "",
        by="tests/broker/tier/test_two_servers.py::"
        "test_an_answer_from_before_it_was_known_is_too_late",
    ),
    Guard(
        "a fenced server takes no messages for streams in the tier",
        _STREAM,
        "        elif tier is not None and tier.fence:\n",
        "        elif tier is not None and tier.fence and opened is None:\n",
        by="tests/broker/tier/test_two_servers.py::"
        "test_what_it_stores_for_the_first_time_counts_nowhere",
    ),
    Guard(
        "a restored log goes on behind all that the lost machine gave out",
        "streamd/broker/tier/restore.py",
        "    put_mark(disk, folder, AHEAD, RESTORED)\n",
        "",
    ),
    Guard(
        "each restore goes on further than the one before",
        "streamd/broker/tier/restore.py",
        "            goes_on = max(manifest.goes_on, manifest.next_offset) + RESTORE_GAP\n",
        "            goes_on = manifest.next_offset + RESTORE_GAP\n",
        by="tests/broker/tier/test_restore.py::"
        "test_of_two_machines_that_are_lost_each_goes_on_elsewhere",
    ),
    Guard(
        "a restore takes what publishers have sent from the tier",
        "streamd/broker/tier/restore.py",
        "    replace_file(disk, str(Path(folder, JOURNAL_NAME)), content).close()\n",
        "",
    ),
    Guard(
        "a manifest is written by compare-and-set after its objects",
        _MANIFEST,
        "            kept, gone = await ask(_replace, self._ownership.store, before, wanted)\n",
        "            kept, gone = await ask(_replace, self._ownership.store, before, wanted)\n"
        "            await self._delete_later({key for key in wanted.keys() if 'index' in key})\n",
    ),
    Guard(
        "the store is asked whether it has a segment before its file goes",
        "streamd/broker/tier/eviction.py",
        "        there = await self._there(tiered, going)\n",
        "        there = going\n",
        "T2",
        by="tests/broker/tier/test_evict.py::"
        "test_what_the_store_has_lost_is_stored_again_before_it_goes",
    ),
    Guard(
        "the file of a segment goes when what is known of publishers does not need it",
        "streamd/broker/tier/eviction.py",
        "        sure = [one for one in going if tiered.log.is_sure_of(one.next_offset)]\n",
        "        sure = going\n",
        by="tests/broker/tier/test_evict.py::test_nothing_goes_that_publishers_are_known_by",
    ),
    Guard(
        "a manifest older than its copy is not gone on from",
        _MANIFEST,
        "        reason = self._doubt(tiered, known, found)\n",
        '        reason = ""\n',
        by="tests/broker/tier/test_wrong_stores.py::"
        "test_a_manifest_older_than_its_copy_is_left_alone",
    ),
    Guard(
        "an upload goes on from what the store has, not from what another server wrote",
        _MANIFEST,
        "            reason = conflict(tiered.log, found_manifest)\n",
        '            reason = ""\n',
        by="tests/broker/tier/test_lifecycle.py::test_a_manifest_that_is_not_of_this_log",
    ),
    Guard(
        "a stream that is deleted is written down before the catalog forgets it",
        _HOST,
        "        deletion = await tier.removals.will_delete(folders, self.name)\n",
        "        deletion = None\n",
        by="tests/broker/tier/test_lifecycle.py::"
        "TestDeletion::test_of_a_server_that_is_killed_as_it_answers",
    ),
    Guard(
        "chunks of a restored stream are sent to whose selector they are not marked for",
        "streamd/broker/declared/standing_selectors.py",
        "        return row._replace(since=max(row.since, stored))\n",
        "        return row\n",
        "T3",
        by="tests/broker/declared/test_selectors.py::"
        "TestStanding::test_what_a_store_has_unmarked_is_not_skipped",
    ),
    Guard(
        "consumers whose selector has changed elsewhere subscribe again",
        "streamd/broker/declared/standing_selectors.py",
        "                for end in list(self._users.get(group, ())):\n                    end()\n",
        "                pass\n",
        "T1",
        by="tests/broker/test_follower.py::"
        "test_consumers_by_a_selector_begin_anew_when_it_is_another_one",
    ),
    Guard(
        "readers of a stored segment that is truncated go on in its rest",
        _READER,
        "        if self._log.segments.holding(self.next_offset) is self._segment:\n",
        "        if True:\n",
        "T7",
        by="tests/broker/tier/test_truncated.py::test_on_the_server_that_writes",
    ),
    Guard(
        "who reads only wakes consumers when the store has more",
        _WRITER,
        "        self._waiters.wake_all()\n\n    def _next",
        "        self._waiters.wake(0)\n\n    def _next",
        part="tier",
    ),
]

# -- users, rights, declared things: users.md, streams.md, P7

_MANAGED = [
    Guard(
        "what is declared is written into the catalog before it is answered",
        "streamd/broker/catalog/writer.py",
        "            await threads.in_thread(self._catalog.apply, *changes)\n",
        "            pass\n",
    ),
    Guard(
        "changes of the catalog take turns",
        "streamd/broker/catalog/writer.py",
        "        async with self._lock:\n",
        "        async with trio.Lock():\n",
    ),
    Guard(
        "a right is asked for again in the turn of a change",
        "streamd/broker/catalog/writer.py",
        "            with trio.CancelScope(shield=True):\n                check()\n",
        "            with trio.CancelScope(shield=True):\n",
        by="tests/broker/catalog/test_changes.py::test_two_at_once_are_as_one_after_the_other",
    ),
    Guard(
        "a change that has begun is not cancelled in its middle",
        "streamd/broker/catalog/writer.py",
        "            with trio.CancelScope(shield=True):\n                check()\n",
        "            with trio.CancelScope():\n                check()\n",
        by="tests/broker/catalog/test_changes.py::test_cancelled_at_each_step",
    ),
    Guard(
        "connections of an old password end when it is changed",
        _USERS,
        "            accounts.with_password.end(f\"the password of user '{name}' was changed\")\n",
        "",
        "V9",
    ),
    Guard(
        "an old password is not remembered as right",
        _USERS,
        "            self._known.pop(name, None)\n            accounts",
        "            accounts",
        "V9",
    ),
    Guard(
        "a password that was changed while it was checked lets nobody in",
        _USERS,
        "        if not is_right or current is None or current.password_hash != kept:\n",
        "        if not is_right or current is None:\n",
        "V9",
        by="tests/auth/test_users.py::TestPasswords::test_changed_while_one_is_checked",
    ),
    Guard(
        "connections of a deleted user end",
        _USERS,
        "            account.end(f\"user '{name}' is deleted\")\n",
        "            pass\n",
    ),
    Guard(
        "connections hear of other permissions",
        _USERS,
        "            self.add_permission(row)\n            self._tell(row.user)\n",
        "            self.add_permission(row)\n",
        "V7",
    ),
    Guard(
        "connections hear of permissions that are taken away",
        _USERS,
        "            del self._permissions[user, virtual_host]\n            self._tell(user)\n",
        "            del self._permissions[user, virtual_host]\n",
        "V7",
        by="tests/auth/test_rights.py::test_a_right_that_goes_ends_consumers_of_amqp_at_once",
    ),
    Guard(
        "a publisher that waited for its stream is asked for its right again",
        _PUBLISHERS,
        "        self._context.rights.require(Right.WRITE, name)  # it may have gone meanwhile\n",
        "",
        "V7",
        by="tests/auth/test_taken_away.py::"
        "test_no_publisher_begins_when_its_stream_was_opened_too_late",
    ),
    Guard(
        "what is left of a frame is not stored when the right is gone",
        _PUBLISHERS,
        "        if publisher.is_deleted:  # while its messages were checked: the right or the "
        "stream is gone\n            return\n",
        "",
        "V7",
        by="tests/auth/test_taken_away.py::test_the_rest_of_a_frame_is_not_stored",
    ),
    Guard(
        "the last administrator stays",
        _USERS,
        "        if {u.name for u in self._users.values() if ADMINISTRATOR in u.tags} == {name}:\n",
        "        if not self._users:\n",
        by="tests/http_api/test_http_api.py::test_the_last_administrator_stays",
    ),
    Guard(
        "of single active consumers one gets messages when the other has stepped down",
        _GROUPS,
        "            self.stepping_down, self.active = self.active, None\n"
        "            self.stepping_down.tell_active(active=False)\n",
        "            self.active.tell_active(active=False)\n"
        "            self.active = wanted\n            wanted.tell_active(active=True)\n",
        by="tests/broker/streams/test_groups.py::TestOverTheProtocol::test_partitions_spread",
    ),
    Guard(
        "when the active consumer leaves another takes over",
        _GROUPS,
        "            self.stepping_down = None\n        self._settle()\n\n    def answered",
        "            self.stepping_down = None\n\n    def answered",
        by="tests/broker/streams/test_groups.py::TestOverTheProtocol::test_one_after_the_other",
    ),
    Guard(
        "a group's consumers are not left behind by another selector",
        "streamd/broker/declared/standing_selectors.py",
        "        if num_users := self.num_users(group):\n",
        "        if (num_users := self.num_users(group)) > 1 << 20:\n",
        by="tests/broker/declared/test_selectors.py::"
        "TestStanding::test_stay_while_consumers_rely_on_them",
    ),
    Guard(
        "while a selector changes, both are evaluated",
        "streamd/broker/declared/standing_selectors.py",
        "        rows = [*self._rows.values(), *filter(None, self._changing.values())]\n",
        "        rows = [*self._rows.values()]\n",
        by="tests/broker/declared/test_selectors.py::"
        "TestStanding::test_what_is_written_during_a_change_is_marked_for_the_new_one",
    ),
    Guard(
        "consumers learn that their stream is gone",
        _HOST,
        "                observer.stream_is_gone(stream)\n",
        "                pass\n",
        by="tests/broker/test_virtual_host.py::"
        "TestDelete::test_users_are_told_once_and_after_the_answer",
    ),
    Guard(
        "work on a stream's files ends before its folder goes",
        _HOST,
        "                await stream.life.stop()\n"
        "                self._resources.quota.count_gone(self",
        "                self._resources.quota.count_gone(self",
        by="tests/broker/test_virtual_host.py::"
        "TestDelete::test_nothing_is_done_with_its_files_any_more",
    ),
    Guard(
        "a consumer that knows offsets of an earlier life of a stream is refused",
        _SUBSCRIPTIONS,
        "            _require_life(log, properties.get(words.LIFE))\n",
        "",
        "K4",
        by="tests/clients/test_position.py::"
        "TestAnotherStream::test_is_noticed_if_it_was_made_just_now",
    ),
    Guard(
        "a consumer of a stream that was made again begins anew",
        _PLACE,
        "        if self.life is not None and life != self.life:\n",
        "        if self.life is not None and life is None:\n",
        "K4",
        by="tests/clients/test_position.py::"
        "TestAnotherStream::test_is_read_from_its_first_message_on",
    ),
    Guard(
        "a lone single active consumer goes on where it was",
        _CONSUMER,
        "        if self._had_turn:\n"
        "            await place.skip_stored(connection)\n        else:\n",
        "        if True:\n",
        "K10",
        by="tests/clients/test_position.py::TestSingleActiveConsumers::test_go_on_where_they_were",
    ),
]

# The write-ahead log: what streams have that are confirmed by the store.
_LOGGED = [
    Guard(
        "a log that is read gets a fence at its end",
        _WAL_READING,
        "        store.create(slot_key(epoch, number), encode_slot(fence))\n",
        "        pass\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "what is behind a fence counts for nobody",
        _WAL_READING,
        "                return\n            yield one\n",
        "                if isinstance(found[-1], SegmentsError):\n"
        "                    return\n"
        "                continue\n"
        "            yield one\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[twice]",
    ),
    Guard(
        "slots are confirmed in their order",
        _WAL,
        "        while self._sent and self._sent[0].is_stored and not self._is_over:\n"
        "            sent = self._sent.popleft()\n",
        "        for sent in [one for one in self._sent if one.is_stored and not self._is_over]:\n"
        "            self._sent.remove(sent)\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "a slot that was not answered is looked for",
        _WAL,
        "                self._ownership.look_again(error)\n"
        "                if sent is self._sent[0]",
        "                sent.is_stored = True\n"
        "                self._settle(0)\n"
        "                if sent is self._sent[0]",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "another object in a slot's place ends confirming",
        _WAL,
        "            if found != content:\n",
        "            if len(found) < 0:\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "a log is named before its first slot",
        _WAL,
        "        while not self._has_begun:\n",
        "        while self._is_over:\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "manifests cover what goes from a log",
        _WAL,
        "                    requests.append(waiting.enter_context(found.requested()))\n",
        "                    pass\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[trim]",
    ),
    Guard(
        "no log begins at a slot that goes",
        _WAL,
        "        await self._ownership.mark_wals("
        "partial(slots.marks_without, count, present=mine))\n",
        "",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[trim]",
    ),
    Guard(
        "readers see what is stored",
        _WAL,
        "    def is_caught_up(self) -> bool:\n"
        '        """All that readers see of it is stored."""\n',
        "    def is_caught_up(self) -> bool:\n        return True\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[killed]",
    ),
    Guard(
        "what is written waits for the store",
        _LOG,
        "        if self.commits_on_flush or self.awaits_store:\n            for chunk",
        "        if self.commits_on_flush:\n            for chunk",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "a batch waits for those before it",
        _WRITER,
        "            if batch.end > end:\n",
        "            if batch.end < 0:\n",
        by="tests/broker/tier/test_wal_answers.py::test_a_turn_that_needs_several_slots_is_confirmed_with_the_last",
    ),
    Guard(
        "what a log has goes behind what the disk has",
        _LOG,
        "            if tail is not None and append_tail(disk, folder, plan, tail):\n",
        "            if tail is None and append_tail(disk, folder, plan, tuple):\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[lost]",
    ),
    Guard(
        "an empty segment makes way for what a log has",
        "segments/recovery/tail.py",
        " and not (plan.is_ended or plan.empty)\n",
        " and not plan.is_ended\n",
        by="tests/segments/recovery/test_tail.py::test_it_goes_behind_an_empty_segment",
    ),
    Guard(
        "what a log is missing is no hole that is passed over",
        "segments/recovery/tail.py",
        "            if chunk.after > tail.end:\n",
        "            if chunk.after < 0:\n",
        by="tests/broker/tier/test_wal.py::test_files_of_another_time_are_not_gone_on_from",
    ),
    Guard(
        "offsets are in the store before they are answered",
        _WRITER,
        "            self.changed_offsets[reference] = offset\n",
        "            pass\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[offsets]",
    ),
    Guard(
        "offsets of a log are written before it is forgotten",
        "streamd/broker/stream_logs.py",
        "    log.journal.write_pending(log.committed_offset)"
        "  # only what is written is answered, and kept\n",
        "",
        by="tests/broker/tier/test_wal.py::test_an_opening_that_fails_loses_no_offset",
    ),
    Guard(
        "a log says what was deleted",
        _WAL,
        "        self._deleted.append(key)\n",
        "",
        by="tests/broker/tier/test_wal_ends.py::test_a_machine_that_is_lost_brings_no_stream_back_whose_end_was_answered",
    ),
    Guard(
        "a log says that a stream is gone before anything of it goes",
        "streamd/broker/tier/removals.py",
        "        return (one for one in self._pending if all(map(is_told, one.streams)))\n",
        "        return iter(self._pending)\n",
        by="tests/broker/tier/test_wal_ends.py::"
        "test_a_stream_whose_end_no_log_says_comes_back_whole",
    ),
    Guard(
        "a stream is opened when logs are read",
        "streamd/broker/tier/tier.py",
        "            await self.confirms.read()\n",
        "            if self.confirms._tails is None:\n                return None\n",
        by="tests/broker/tier/test_wal.py::test_a_log_that_was_looked_for_elsewhere_has_not_ended",
    ),
    Guard(
        "a folder that is opened without a store's log says so",
        _WAL,
        "            await threads.in_thread(self._mark, log)\n",
        "            self._is_marked = True\n",
        by="tests/broker/tier/test_wal_answers.py::test_what_the_disk_refuses_for_a_while_is_tried_again",
    ),
    Guard(
        "each start has an epoch of its own",
        "streamd/broker/tier/identity.py",
        "epoch=known.epoch + 1,",
        "epoch=max(known.epoch, 1),",
        by="tests/broker/tier/test_claims.py::TestEpochs::test_each_start_has_a_higher_one",
    ),
    Guard(
        "fences stay",
        "streamd/broker/tier/slots.py",
        "        if not (one.size <= _MOST_FENCE and _may_be_fence(store, one.key)):\n",
        "        if one.size >= 0:\n",
        by="tests/broker/tier/test_slots.py::test_what_counts_or_cannot_be_read_stays",
    ),
    Guard(
        "a log begins behind what goes before that goes",
        _WAL,
        "        await self._ownership.mark_wals("
        "partial(slots.marks_without, count, present=mine))\n"
        "        keys = slots.keys(count)\n",
        "        keys = slots.keys(count)\n"
        "        await ask(self._ownership.store.delete, keys)\n"
        "        await self._ownership.mark_wals("
        "partial(slots.marks_without, count, present=mine))\n",
        by="tests/broker/tier/test_wal_model.py::test_promises_hold[trim]",
    ),
    Guard(
        "opening waits for what is on its way",
        _WAL,
        " and not self._num_under_way\n",
        "\n",
        by="tests/broker/tier/test_wal_answers.py::test_each_opening_waits_for_what_only_the_disk_has",
    ),
    Guard(
        "an end is answered when the log says it",
        _WAL,
        "            self._num_ends_stored = sent.num_ends\n",
        "            self._num_ends_stored = self._num_ends\n",
        by="tests/broker/tier/test_wal_ends.py::test_an_end_is_not_answered_by_a_slot_from_before",
    ),
    Guard(
        "an end that no slot has is said at the next start",
        _WAL,
        "if self._is_gone(key) or await threads.in_thread(self._is_replaced, key):",
        "if tail is None:",
        by="tests/broker/tier/test_wal_ends.py::"
        "test_an_end_that_no_slot_has_when_the_server_ends_is_said_at_the_next_start",
    ),
    Guard(
        "an end is said where nobody has looked at the stream that has its name",
        _WAL,
        " or await threads.in_thread(self._is_replaced, key):",
        ":",
        by="tests/broker/tier/test_wal_ends.py::"
        "test_an_end_that_no_slot_has_is_said_where_another_one_of_its_name_is_there",
    ),
    Guard(
        "a slot tells of no more ends than a start can read",
        _WAL,
        "self._deleted[:_MOST_ENDS], self._deleted[_MOST_ENDS:]",
        "self._deleted, []",
        by="tests/broker/tier/test_wal_ends.py::test_many_ends_go_into_several_slots",
    ),
    Guard(
        "what a backup lacks is the stream that was created last",
        "streamd/broker/tier/lost_copies.py",
        "            folders = [one for one in folders if not _is_gone(one, tail)]\n",
        "            pass\n",
        by="tests/broker/tier/test_log_harm.py::"
        "test_a_stream_that_a_backup_lacks_is_the_one_that_was_created_last",
    ),
    Guard(
        "a stream of a shard ends by its life",
        "streamd/broker/virtual_host.py",
        "            tier.confirms.deleted(self.name, name, life)\n",
        "",
        by="tests/broker/nodes/test_shards_read.py::"
        "test_nothing_waits_of_a_stream_that_was_deleted_and_created_again",
    ),
    Guard(
        "who does not lead a stream any more searches for no other node",
        "streamd/broker/virtual_host.py",
        "if name in self._streams and self.writer(name) is not None:",
        "if name is None:",
        by="tests/broker/nodes/test_shards_read.py::"
        "test_a_node_that_does_not_lead_any_more_searches_for_no_other",
    ),
    Guard(
        "an end is answered when nothing of it is in the store",
        "streamd/broker/tier/tier.py",
        "        await self.removals.carried_out(deletions)\n"
        "        await self._catalog_stored()\n",
        "        await self._catalog_stored()\n",
        by="tests/broker/tier/test_wal_ends.py::test_an_end_that_the_store_does_not_know_is_not_answered",
    ),
    Guard(
        "a truncation is answered when the manifest has it",
        "streamd/broker/streams/open_log.py",
        "            await self._tier.truncated(self)\n",
        "",
        by="tests/broker/tier/test_wal_ends.py::test_what_was_truncated_stays_so",
    ),
    Guard(
        "what leaves the store's log needs it no more",
        _MAINTENANCE,
        "            await threads.in_thread(remove_mark, disk, log.folder, mark)\n",
        "            await threads.in_thread(len, mark)\n",
        by="tests/broker/tier/test_wal_ends.py::test_offsets_that_were_forgotten_here_do_not_come_back",
    ),
    Guard(
        "nothing goes to the store while a stream leaves its log",
        _WAL,
        "        if writer is not None and writer.is_paused:",
        "        if writer is not None and writer.is_settled is None:",
        by="tests/broker/tier/test_wal_ends.py::test_nothing_goes_to_the_store_while_a_stream_leaves_its_log",
    ),
    Guard(
        "a flush shows nothing that a store is to have by now",
        _FLUSH,
        "        num_shown = flush.num_held if shows else 0\n",
        "        num_shown = flush.num_held\n",
        by="tests/broker/tier/test_wal_ends.py::test_a_flush_that_runs_shows_nothing_that_a_store_is_to_have",
    ),
    Guard(
        "sequences and offsets are answered in time",
        _STREAM,
        "        with trio.move_on_after(seconds):\n            return await self.settled()\n",
        "        if seconds >= 0:\n            return await self.settled()\n",
        by="tests/broker/tier/test_wal_ends.py::test_nobody_waits_for_ever_for_a_store_that_is_away",
    ),
]

# Faults that readings have found in what no world does: tools, caches, doors.
_READ_OF = [
    Guard(
        "a folder is open in one process",
        _LOG,
        "            lock = disk.lock(folder)\n            opened.callback(lock.release)\n",
        "            lock = disk.lock(folder)\n            lock.release()\n",
        "L1",
        by="tests/segments/test_lock.py::test_another_process_until_it_is_killed",
    ),
    Guard(
        "a recommendation is carried out in the virtual host of its stream",
        "streamd/cli/tune.py",
        "(_host_in(stream) if is_path else vhost) or",
        "(_host_in(stream) if is_path else None) or",
        "K6",
        by="tests/cli/test_tune.py::test_the_stream_is_changed_in_its_virtual_host",
    ),
    Guard(
        "a time without a zone is local",
        "segments/times.py",
        "time.astimezone(UTC)) - _EPOCH",
        "time.replace(tzinfo=UTC)) - _EPOCH",
        "K9",
        by="tests/segments/test_times.py::test_without_a_zone_it_is_local",
    ),
    Guard(
        "a file of the cache that somebody has removed is made anew",
        "segments/store/cache.py",
        "                if not error.is_missing:\n                    raise\n",
        "                raise\n",
        "T4",
        by="tests/broker/streams/test_fetcher.py::test_the_cache_folder_is_removed",
    ),
    Guard(
        "patterns of those without a login have little memory",
        "streamd/metrics/scrape.py",
        "            compiled(pattern, _PATTERN_MEMORY)\n",
        "            compiled(pattern, 8 << 20)\n",
        "V1",
        by="tests/metrics/test_scrapes.py::test_bad_patterns",
    ),
    Guard(
        "a user has a share of the connections alone",
        "streamd/http_api/serving.py",
        "_Places(max(_LEAST_SHARE, max_connections // _SHARES))",
        "_Places(max_connections)",
        "V8",
        by="tests/connections/test_hostile_peers.py::"
        "test_a_user_with_many_slow_requests_locks_nobody_out",
    ),
    Guard(
        "a property's name is no longer than an index takes",
        "segments/selector/selector.py",
        '    if len(name.encode(errors="replace")) > MAX_PROPERTY_BYTES:\n',
        '    if len(name.encode(errors="replace")) > 1 << 20:\n',
        "ST2",
        by="tests/http_api/test_found_messages.py::test_what_is_wrong_is_named",
    ),
    Guard(
        "what is wrong with one partition keeps nothing from the others",
        "clients/super_stream.py",
        "                told = error.refused if isinstance(error, PublishFailed) else ()\n",
        "                told = error.refused if isinstance(error, PublishFailed) else ()\n"
        "                raise\n",
        "K11",
        by="tests/clients/test_numbers.py::TestSuperProducers::"
        "test_a_partition_that_is_gone_costs_the_others_nothing",
    ),
    Guard(
        "what is known of many patterns is made in steps",
        "streamd/broker/routing/topics.py",
        "                units = 0\n                yield\n        self._starts",
        "                units = 0\n        self._starts",
        "V4",
        by="tests/broker/routing/test_topics.py::test_no_step_takes_long",
    ),
    Guard(
        "a pattern that takes much memory is refused",
        "streamd/patterns.py",
        "_MEMORY = 128 << 10\n",
        "_MEMORY = 8 << 20\n",
        "V5",
        by="tests/test_patterns.py::test_one_that_cannot_be_bounded_is_refused_when_it_is_set",
    ),
    Guard(
        "numbers that are asked for by their text are looked for in chunks without values",
        "segments/spark/options.py",
        "self.match_unfiltered or self._has_numbers_without_value()",
        "self.match_unfiltered",
        "K3",
        by="tests/segments/spark/test_filter_values.py::"
        "test_numbers_come_whatever_chunk_they_stand_in",
    ),
    Guard(
        "a consumer ends where a stream that became shorter ends",
        "clients/consumer.py",
        "            self._end_offset = 0 if is_other else min(self._end_offset, state.end)\n",
        "            pass\n",
        "K12",
        by="tests/clients/test_position.py::TestShorter::test_is_read_on_where_it_ends",
    ),
    Guard(
        "Ctrl-C waits until Spark has begun",
        "segments/spark/session.py",
        "        with _uninterrupted(), ThreadPoolExecutor(1) as thread:\n"
        "            session = thread.submit(_started, master, settings, is_ours=is_ours)"
        ".result()\n"
        "        yield session\n"
        "    finally:  # also what a failure has left half begun\n"
        "        with _uninterrupted():\n"
        "            _stop(session)\n",
        "        session = _started(master, settings, is_ours=is_ours)\n"
        "        yield session\n"
        "    finally:\n"
        "        if session is not None:\n"
        "            _stop(session)\n",
        "K14",
        by="tests/cli/test_tune.py::test_ctrl_c_while_spark_starts_leaves_nothing",
    ),
    Guard(
        "Spark waits for a stream that may still come",
        "segments/spark/streaming.py",
        "            if position.offset or position.life:\n"
        "                raise\n"
        "            return None\n",
        "            raise\n",
        "K17",
        by="tests/segments/spark/test_positions.py::test_a_stream_without_messages_gets_some",
    ),
    Guard(
        "chunks that may match are found in one go for each key",
        "segments/search/chunk_screen.py",
        "if ordinal in may]",
        "if ordinal in matching(filters, matcher, range(ordinal, ordinals[-1] + 1))]",
        "ST4",
        by="tests/segments/test_property_keys.py::"
        "test_two_properties_that_never_meet_cost_what_their_chunks_cost",
    ),
    Guard(
        "a line begins with one part",
        "streamd/broker/tier/line.py",
        "        self.window = part\n",
        "        self.window = MOST_PARTS * part\n",
        "T5",
        by="tests/broker/tier/test_line.py::test_a_slow_line_gets_everything_stored_in_its_time",
    ),
    Guard(
        "a stream that could not be restored is tried again",
        "streamd/broker/stream_logs.py",
        "        except UnrestoredError as error:\n"
        "            if tier is None:\n"
        "                raise\n",
        "        except UnrestoredError as error:\n            raise\n",
        "T6",
        by="tests/broker/tier/test_restore.py::"
        "test_what_could_not_be_restored_is_there_when_its_object_is",
    ),
    Guard(
        "an index that is missing in the store is made from its segment",
        "segments/tier/fetching.py",
        "        if suffix != INDEX_SUFFIX:\n            raise\n        fault",
        "        raise\n        fault",
        "T8",
        by="tests/segments/spark/test_stored.py::test_an_index_that_is_missing",
    ),
    Guard(
        "a table has so many values",
        "streamd/wire/amqp091/values.py",
        "MAX_VALUES = 4_096\n",
        "MAX_VALUES = 1 << 20\n",
        "V2",
        by="tests/test_turns.py::test_what_is_in_a_frame[values of a request]",
    ),
    Guard(
        "a body has so many sections",
        "streamd/wire/stored_messages.py",
        "MAX_SECTIONS = 1_024  #",
        "MAX_SECTIONS = 1 << 22  #",
        "V3",
        by="tests/test_turns.py::test_what_is_in_a_frame[sections]",
    ),
    Guard(
        "what has arrived is confirmed before an end in order",
        "streamd/connections/base.py",
        "                        await session.settled()\n                    session.close()",
        "                    session.close()",
        "V6",
        by="tests/connections/test_endings.py::test_what_is_stored_was_confirmed",
    ),
    Guard(
        "fields that definitions do not have become no objects",
        "streamd/http_api/messages.py",
        '        return msgspec.json.decode(data.strip() or b"{}", type=kind)\n',
        '        msgspec.json.decode(data.strip() or b"{}")\n'
        '        return msgspec.json.decode(data.strip() or b"{}", type=kind)\n',
        "V10",
        by="tests/http_api/test_http_api.py::"
        "test_fields_that_definitions_do_not_have_become_no_objects",
    ),
    Guard(
        "messages are settled in steps",
        "streamd/connections/amqp091/channel.py",
        "islice(self._unacked, MOST_SETTLED)",
        "self._unacked",
        "V11",
        by="tests/connections/amqp091/test_channel.py::test_many_messages_are_settled_in_steps",
    ),
]

# -- nodes of a cluster: docs/internals/tier.md, A cluster

_NODES = [
    Guard(
        "what works for a shard that is led no more starts no tasks",
        "streamd/broker/supervisor.py",
        "    except RuntimeError as error:\n        raise OverError(",
        "    except ZeroDivisionError as error:\n        raise OverError(",
        part="nodes",
    ),
    Guard(
        "who leads a stream is asked for searches",
        "streamd/connections/stream/relay.py",
        "            if node is None:\n                return False\n",
        "            if node is None or type(command) is c.Find:\n                return False\n",
        part="nodes",
    ),
    Guard(
        "nobody uses a stream whose arguments are not known",
        "clients/position.py",
        "    if code not in _SAID:\n",
        "    if code not in (*_SAID, ResponseCode.STREAM_NOT_AVAILABLE):\n",
        part="nodes",
    ),
    Guard(
        "no shard is begun before the cluster has a root",
        "streamd/server.py",
        "    await owner.settled()\n    if owner.fence:",
        "    keep_shards()\n    keep_shards = bool\n    await owner.settled()\n    if owner.fence:",
        part="nodes",
    ),
    Guard(
        "heartbeats of a node that stands by are not the leader's",
        "streamd/broker/nodes/watch.py",
        "beat.role in (NodeRole.LEADER, NodeRole.LEFT) and beat.epoch",
        "beat.epoch",
        by="tests/broker/nodes/test_heartbeat_watch.py::test_what_does_not_come_from_the_leader_is_silence",
    ),
    Guard(
        "one start of a leader counts",
        "streamd/broker/nodes/watch.py",
        "counts = beat.start == self._start and not is_late",
        "counts = not is_late",
        by="tests/broker/nodes/test_heartbeat_watch.py::test_one_start_counts_for_some_time",
    ),
    Guard(
        "of a heartbeat that cannot be read the changes count",
        "streamd/broker/nodes/watch.py",
        "        return LONE_BEATS * BEAT_SECONDS\n",
        "        return BEAT_SECONDS\n",
        by="tests/broker/nodes/test_heartbeat_watch.py::test_of_what_cannot_be_read_the_changes_count",
    ),
    Guard(
        "a note of a takeover is followed if the leader has not gone on",
        "streamd/broker/nodes/node.py",
        "            if facts.seen != _etag(found):\n",
        "            if found is None:\n",
        by="tests/broker/nodes/test_read.py::test_a_note_of_a_takeover_from_long_ago_is_not_followed",
    ),
    Guard(
        "a leader whose heartbeat was late looks whether it leads",
        "streamd/broker/nodes/node.py",
        "            self._look()  #",
        "            pass  #",
        by="tests/broker/nodes/test_read.py::test_a_leader_that_was_paused_looks_whether_it_still_is",
    ),
    Guard(
        "a machine that starts again is waited for where it has what nobody else has",
        "streamd/broker/nodes/node.py",
        "(is_short and self._has_local())",
        "(is_short and not self._watch.is_gone)",
        by="tests/broker/nodes/test_read.py::test_a_cluster_that_is_started_again_goes_on_with_its_leader",
    ),
    Guard(
        "a node that cannot take over gives way",
        "streamd/server.py",
        "                await node.give_way()\n",
        "                await trio.sleep(0)\n",
        by="tests/broker/nodes/test_read.py::test_a_takeover_that_never_ends_is_taken_over",
    ),
    Guard(
        "a leader that leaves has stored its catalog",
        "streamd/broker/tier/tier.py",
        "            await self._catalog_stored()\n        if waiting",
        "            pass\n        if waiting",
        by="tests/broker/nodes/test_read.py::"
        "test_a_user_of_the_moment_before_the_leader_left_is_there",
    ),
    Guard(
        "--restore counts once",
        "streamd/broker/nodes/node.py",
        "            is_new = facts.file is None and not",
        "            is_new = not",
        by="tests/broker/nodes/test_read.py::"
        "test_restore_stays_in_the_command_of_one_that_was_killed",
    ),
    Guard(
        "the folder of another node is no copy of it",
        "streamd/broker/nodes/node.py",
        "            elif facts.file is not None and facts.file.node != self.name:\n",
        "            elif facts.file is not None and facts.file.node == '':\n",
        by="tests/broker/nodes/test_read.py::test_copy_of_a_standbys_folder",
    ),
    Guard(
        "what was confirmed before a stream waited for the store is kept",
        "streamd/broker/nodes/leftovers.py",
        "row.arguments.get(CONFIRM) == STORE and CONFIRM not in row.settings",
        "row.effective.get(CONFIRM) == STORE",
        by="tests/broker/nodes/test_read.py::test_what_was_confirmed_before_a_stream_waits_for_the_store",
    ),
    Guard(
        "a stream whose manifest is damaged is kept",
        "streamd/broker/follower.py",
        "not one.creation or one.fault:",
        "not one.creation:",
        by="tests/broker/nodes/test_read.py::test_a_stream_whose_manifest_is_damaged_is_kept",
    ),
    Guard(
        "a leader does not read what all nodes say",
        "streamd/broker/nodes/beats.py",
        "        with trio.move_on_after(self._usual / 2), suppress(TierError):\n",
        "        with suppress(TierError):\n"
        "            for key in await ask(self._list_others):\n"
        "                await ask(read_heartbeat, self._store, key.rpartition('/')[2])\n"
        "        with suppress(TierError):\n",
        by="tests/broker/nodes/test_read.py::test_many_dead_nodes_do_not_hold_up_the_leader",
    ),
    Guard(
        "a copy of a folder does not know that its process has ended",
        "streamd/broker/nodes/folder.py",
        "return (self.boot, self.place) == (OsDisk().boot(), _place(data))",
        "return self.boot == OsDisk().boot()",
        by="tests/broker/nodes/test_folder.py::test_a_copy_is_told_from_the_folder",
    ),
    Guard(
        "a heartbeat of a former life is no other node's",
        "streamd/broker/nodes/beats.py",
        " and not self._is_over(beat):",
        ":",
        by="tests/broker/nodes/test_read.py::test_a_heartbeat_that_lands_late_is_one_s_own",
    ),
    Guard(
        "what an earlier leader sets aside is on the device",
        "streamd/broker/nodes/folder.py",
        "    for changed in (folder, folder.parent, Path(data)):\n",
        "    for changed in (folder, Path(data)):\n",
        by="tests/broker/nodes/test_read.py::test_what_is_set_aside_survives_a_power_failure",
    ),
]

# -- AMQP 1.0: what a link may send, and what becomes of what it has begun

_OF_AMQP10 = [
    Guard(
        "an aborted message is dropped",
        _AMQP10_WIRE,
        "            self.drop_unfinished()\n            return None",
        "            return None",
    ),
    Guard(
        "a link sends no more than its credit",
        _AMQP10_LINKS,
        "        room = min(self.link.credit, sending.session.outgoing)",
        "        room = sending.session.outgoing if self.link.credit else 0",
    ),
    Guard(
        "a session sends no more than its window",
        _AMQP10_LINKS,
        "        self._go_on(put)\n\n    def _go_on",
        "        put(message.take(1 << 20)[0])\n\n    def _go_on",
    ),
    Guard(
        "a drain takes all credit back",
        _AMQP10_LINKS,
        "            self.link.drain()\n",
        "",
    ),
    Guard(
        "SQL and property filters choose messages",
        _AMQP10_FILTERS,
        "        found = wanted_of(self._start, matcher, selector, declared, self._now_ms)",
        "        found = wanted_of(self._start, matcher, None, declared, self._now_ms)",
    ),
    Guard(
        "a drain is told behind what waits",
        _AMQP10_LINKS,
        " or self.sending.waits_for(self.link)",
        "",
        by=f"{_AMQP10_TESTS}/test_windows.py::TestOut::test_who_drains_is_told_after_what_waits",
    ),
    Guard(
        "what waits for a window goes with its link",
        _AMQP10_LINKS,
        "        gone = [item for item in self._waiting if item[0] is link]",
        "        gone: list[tuple[Link, Pieces]] = []",
        by=f"{_AMQP10_TESTS}/test_windows.py::TestOut::test_what_waits_goes_with_its_link",
    ),
    Guard(
        "what links leave is forgotten in turns",
        _AMQP10_LINKS,
        "        count = min(len(left[0]), MOST_SETTLED) if left else 0",
        "        count = len(left[0]) if left else 0",
        by=f"{_AMQP10_TESTS}/test_consuming.py::"
        "TestEnds::test_what_many_messages_leave_is_forgotten_in_turns",
    ),
    Guard(
        "a flow opens the window for all links",
        _AMQP10_SESSION,
        "        links.window_opened()\n",
        "",
        by=f"{_AMQP10_TESTS}/test_windows.py::"
        "TestOut::test_a_flow_that_crosses_a_detach_opens_the_window",
    ),
    Guard(
        "messages of a link that has gone take no turn",
        _AMQP10_SESSION,
        "        is_there = session.links.get(link.handle) is link and not link.is_detached",
        "        is_there = True",
        by=f"{_AMQP10_TESTS}/test_turns.py::test_a_link_that_goes_before_the_turn_of_its_message",
    ),
    Guard(
        "a message is accepted when its last stream has it",
        _AMQP10_PUBLISHER,
        "            if left == 1:",
        "            if left is not None:",
        by=f"{_AMQP10_TESTS}/test_publishing.py::"
        "TestDisks::test_of_several_streams_all_have_to_store_it",
    ),
    Guard(
        "a message that one stream has is not released",
        _AMQP10_PUBLISHER,
        "                if is_stored:\n",
        "                if not is_stored:\n",
        by=f"{_AMQP10_TESTS}/test_publishing.py::TestEnds::test_one_of_its_streams_is_deleted",
    ),
]

GUARDS = [
    *_NODES,
    *_OF_AMQP10,
    *_DURABLE,
    *_OPENED,
    *_TRUNCATED,
    *_PUBLISHED,
    *_READ,
    *_SEARCHED,
    *_DERIVED,
    *_CLIENTS,
    *_STORED,
    *_LOGGED,
    *_MANAGED,
    *_READ_OF,
    Guard(
        "an entry of the log is created, never replaced",
        _CLAIMS,
        "etag = store.create(entry.key, content)",
        "store.put(entry.key, content)\n"
        "        etag = read_entry(store, entry.tier, entry.revision).etag",
        by="tests/broker/tier/test_claims.py::"
        "TestClaim::test_of_two_that_take_it_over_at_once_one_has_it",
    ),
    Guard(
        "an entry in the place of another counts first",
        _CLAIMS,
        "        if read.entry != entry:",
        "        if not read.entry:",
        by="tests/broker/tier/test_claims.py::"
        "TestClaim::test_of_two_that_take_it_over_at_once_one_has_it",
    ),
    Guard(
        "nothing is logged in another store",
        _CLAIMS,
        "    _check_there(store, held)\n    content = encode_entry(entry)",
        "    content = encode_entry(entry)",
        by="tests/broker/tier/test_log_harm.py::test_nothing_is_logged_in_another_store",
    ),
    Guard(
        "an entry of who was taken over cannot follow",
        _METADATA_LOG,
        "    elif of_entry != (cluster.epoch, cluster.writer, cluster.start):",
        "    elif not of_entry:",
        by="tests/broker/tier/test_log_harm.py::test_an_entry_of_another_epoch_cannot_follow",
    ),
    Guard(
        "a claim has an epoch above those before",
        _CLAIMS,
        "            epoch=max(me.epoch, cluster.epoch + 1),",
        "            epoch=me.epoch,",
        by="tests/broker/tier/test_claims.py::"
        "TestClaim::test_our_own_is_taken_again_with_a_higher_epoch",
    ),
    Guard(
        "a hole in the log is no end",
        _METADATA_LOG,
        "                if not is_to_end or not any(store.listing(log_folder(tier), key)):",
        "                if key:",
        by="tests/broker/tier/test_log_harm.py::test_no_hole_is_taken_for_the_end",
    ),
    Guard(
        "notes go up to what the store has",
        _UNLOGGED,
        '"DELETE FROM unlogged WHERE change <= ?", (change,)',
        '"DELETE FROM unlogged WHERE change >= ?", (0 * change,)',
        by="tests/broker/tier/test_log_harm.py::"
        "test_what_is_changed_while_an_entry_is_on_its_way_is_in_the_next",
    ),
    Guard(
        "what is noted later than an entry stays",
        _UNLOGGED,
        "    if noted is not None and (noted[0] > entry.change or noted[1] != entry.start):",
        "    if noted is not None and noted[1] != entry.start:",
        by="tests/broker/catalog/test_unlogged.py::test_snapshot_and_entries_are_the_catalog",
    ),
    Guard(
        "notes of another start are not in an entry",
        _UNLOGGED,
        "    if noted is not None and (noted[0] > entry.change or noted[1] != entry.start):",
        "    if noted is not None and noted[0] > entry.change:",
        by="tests/broker/tier/test_log_harm.py::test_changes_of_two_lives_are_not_compared",
    ),
    Guard(
        "a key that becomes another is noted with both",
        _UNLOGGED,
        '"update": ("old", "new")',
        '"update": ("new",)',
        by="tests/broker/tier/test_log_harm.py::test_a_key_that_becomes_another_is_noted_with_both",
    ),
    Guard(
        "a row that is removed is noted",
        _UNLOGGED,
        '"delete": ("old",)',
        '"delete": ()',
        by="tests/broker/catalog/test_unlogged.py::test_snapshot_and_entries_are_the_catalog",
    ),
    Guard(
        "a snapshot has nothing that was removed",
        _UNLOGGED,
        '        copy.execute("VACUUM")\n',
        "",
        by="tests/broker/catalog/test_unlogged.py::test_a_copy_has_nothing_that_was_removed",
    ),
    Guard(
        "a start has what the log has before anybody reads the catalog",
        _FOLDING,
        "    count = await threads.in_thread(notes.follow, entries, now)\n",
        "    count = len(entries) * 0\n",
        by="tests/broker/tier/test_catalog_log.py::"
        "test_a_folder_from_a_backup_gets_what_the_log_has",
    ),
    Guard(
        "a stream that a backup lacks is marked before the catalog has it",
        _FOLDING,
        "    await threads.in_thread(_restore_later, data, entries)\n"
        "    count = await threads.in_thread(notes.follow, entries, now)\n",
        "    count = await threads.in_thread(notes.follow, entries, now)\n"
        "    await threads.in_thread(_restore_later, data, entries)\n",
        by="tests/broker/tier/test_log_harm.py::test_streams_that_a_backup_lacks",
    ),
    Guard(
        "a catalog in use is not written over by the log",
        _UNLOGGED,
        "        self._read(entries, state, self._refuse)",
        "        self._read(entries, state, _overwrite)",
        by="tests/broker/catalog/test_unlogged.py::"
        "test_a_backup_gets_what_the_log_has_and_keeps_what_is_noted",
    ),
    Guard(
        "what a snapshot does not have is gone",
        _FOLDING,
        "        rows.setdefault(_named(row), Row(row.table, row.key, None))",
        "        rows.setdefault(_named(row), row)",
        by="tests/broker/tier/test_log_harm.py::test_a_backup_that_is_far_behind_reads_a_snapshot",
    ),
    Guard(
        "a snapshot that went elsewhere is stored again",
        _CLAIMS,
        "            check_there(store, {root.key: len(content)})\n",
        "",
        by="tests/broker/tier/test_log_harm.py::test_the_first_snapshot_goes_elsewhere",
    ),
    Guard(
        "marks alone bring a snapshot",
        _OWNERSHIP,
        "            self._use.log_grew(held)\n",
        "",
        by="tests/broker/tier/test_log_harm.py::test_marks_alone_bring_a_snapshot",
    ),
    Guard(
        "a log that was begun is this server's",
        _CLAIMS,
        '        cluster = replace(earlier.cluster, tier=tier, writer=me.name, start="")',
        "        cluster = replace(earlier.cluster, tier=tier)",
        by="tests/broker/tier/test_log_harm.py::"
        "test_a_restore_of_an_earlier_tier_that_ends_half_way",
    ),
    Guard(
        "what was logged just before a claim is seen",
        _OWNERSHIP,
        "        if met:  #",
        "        if not held:  #",
        by="tests/broker/tier/test_log_harm.py::"
        "test_what_another_start_logged_just_before_the_claim",
    ),
    Guard(
        "changes are noted from the start on",
        _FOLDING,
        "    await threads.in_thread(notes.begin, me.start)\n",
        "    await threads.in_thread(len, me.start)\n",
        by="tests/broker/tier/test_log_harm.py::"
        "test_what_is_changed_before_the_tier_is_seen_is_kept",
    ),
    Guard(
        "what sums of times are off by is no rate",
        "streamd/broker/tier/backlog.py",
        "        if busy > _SHORTEST_SECONDS:\n",
        "        if busy:\n",
        by="tests/broker/tier/test_backlog.py::test_the_rate_after_one_part",
    ),
    Guard(
        "what a flush has written is counted before a slot takes it",
        _WAL,
        "                    self._note(stream, stream.opened)\n",
        "                    pass\n",
        by="tests/broker/tier/test_wal.py::"
        "test_what_a_flush_has_written_is_counted_when_it_is_taken",
    ),
    Guard(
        "what the own copy of a manifest names is no orphan",
        "streamd/broker/tier/lifecycle.py",
        "        named = manifest.keys().union(mine, (manifest_key,))\n",
        "        named = manifest.keys() | {manifest_key}\n",
        by="tests/broker/tier/test_caution.py::test_what_an_older_manifest_does_not_name_stays",
    ),
]
