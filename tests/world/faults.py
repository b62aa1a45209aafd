"""Faults that readings of the code have found, and the tests that fail when one is put back.

Those that are the mend of a guard are in its `kin`, and found as it is; these have no guard. Left
out is what only concerned the text of a message or what an option is called.
"""

FOUND_BY = {
    "K3": "tests/segments/spark/test_filter_values.py::"
    "test_numbers_come_whatever_chunk_they_stand_in",
    "K12": "tests/clients/test_position.py::TestShorter::test_is_read_on_where_it_ends",
    "K14": "tests/cli/test_tune.py::test_ctrl_c_while_spark_starts_leaves_nothing",
    "K17": "tests/segments/spark/test_positions.py::test_a_stream_without_messages_gets_some",
    "ST4": "tests/segments/test_property_keys.py::"
    "test_two_properties_that_never_meet_cost_what_their_chunks_cost",
    "T5": "tests/broker/tier/test_line.py::test_a_slow_line_gets_everything_stored_in_its_time",
    "T6": "tests/broker/tier/test_restore.py::"
    "test_what_could_not_be_restored_is_there_when_its_object_is",
    "T8": "tests/segments/spark/test_stored.py::test_an_index_that_is_missing",
    "V2": "tests/test_turns.py::test_what_is_in_a_frame",
    "V3": "tests/test_turns.py::test_what_is_in_a_frame",
    "V6": "tests/connections/test_endings.py::test_what_is_stored_was_confirmed",
    "V10": "tests/http_api/test_http_api.py::"
    "test_fields_that_definitions_do_not_have_become_no_objects",
    "V11": "tests/test_turns.py::test_what_is_in_a_frame",
}
