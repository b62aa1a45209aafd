"""Faults that readings of the code have found, and the tests that fail when one is put back.

Those that are the mend of a guard are in its `kin`, and found as it is; these have no guard. Left
out is what only concerned the text of a message or what an option is called.
"""

FOUND_BY = {
    "K3": "tests/segments/spark/test_filter_values.py::"
    "test_numbers_come_whatever_chunk_they_stand_in",
    "K6": "tests/cli/test_tune.py::test_the_stream_is_changed_in_its_virtual_host",
    "K9": "tests/segments/test_times.py::test_without_a_zone_it_is_local",
    "K11": "tests/clients/test_numbers.py::TestSuperProducers::"
    "test_a_partition_that_is_gone_costs_the_others_nothing",
    "K12": "tests/clients/test_position.py::TestShorter::test_is_read_on_where_it_ends",
    "K13": "tests/clients/test_numbers.py::test_questions_are_asked_again",
    "K14": "tests/cli/test_tune.py::test_ctrl_c_while_spark_starts_leaves_nothing",
    "K17": "tests/segments/spark/test_positions.py::test_a_stream_without_messages_gets_some",
    "L1": "tests/segments/test_lock.py::test_another_process_until_it_is_killed",
    "ST2": "tests/http_api/test_found_messages.py::test_what_is_wrong_is_named",
    "ST4": "tests/segments/test_property_keys.py::"
    "test_two_properties_that_never_meet_cost_what_their_chunks_cost",
    "T4": "tests/broker/streams/test_fetcher.py::test_the_cache_folder_is_removed",
    "T5": "tests/broker/tier/test_line.py::test_a_slow_line_gets_everything_stored_in_its_time",
    "T6": "tests/broker/tier/test_restore.py::"
    "test_what_could_not_be_restored_is_there_when_its_object_is",
    "T8": "tests/segments/spark/test_stored.py::test_an_index_that_is_missing",
    "V1": "tests/metrics/test_scrapes.py::test_bad_patterns",
    "V2": "tests/test_turns.py::test_what_is_in_a_frame",
    "V3": "tests/test_turns.py::test_what_is_in_a_frame",
    "V4": "tests/broker/routing/test_topics.py::test_no_step_takes_long",
    "V5": "tests/test_patterns.py::test_one_that_cannot_be_bounded_is_refused_when_it_is_set",
    "V6": "tests/connections/test_endings.py::test_what_is_stored_was_confirmed",
    "V8": "tests/connections/test_hostile_peers.py::"
    "test_a_user_with_many_slow_requests_locks_nobody_out",
    "V10": "tests/http_api/test_http_api.py::"
    "test_fields_that_definitions_do_not_have_become_no_objects",
    "V11": "tests/test_turns.py::test_what_is_in_a_frame",
}
