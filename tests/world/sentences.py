"""Sentences of the documentation that promise something, and who watches over each.

A page has sentences as they stand there, whatever the lines are. Behind each is the name of a
checker of the world, as its faults begin, or the file of tests that holds it where a world could
not show it.
"""

_LOST = "nothing confirmed is lost"
_ONCE = "each publisher's messages are in order, once"
_GAPS = "what survives has no gaps"
_OFFSETS = "an offset means one message"
_PASSED = "nobody passes over a message"
_EXACT = "only what was asked for"
_FOUND = "a search finds all"
_WALK = "a walk finds all"
_SEEN = "what was seen stays"
_OTHER_STATES = "another state"
_FIGURES = "figures are true"
_STORED = "what is stored stays"
_GOES_ON = "a consumer goes on where it was"
_CONFIRMED = "what is stored is confirmed"
_ACTIVE = "one at a time is active"
_RIGHTS = "nobody does without a right"
_GIVEN = "what is given is there"
_EXPLAINED = "every answer is explained"
_AGREE = "catalog, memory and folders agree"
_WAITS = "these wait for ever"
_HELD = "nobody holds the loop"

# Names of checkers that are in no table of the witness.
OTHERS = frozenset(
    (
        *(_ACTIVE, _RIGHTS, _GIVEN, _EXPLAINED, _AGREE, _WAITS, _HELD, _OTHER_STATES),
        "no rest is stored",
    )
)

_RETENTION = "tests/segments/test_retention.py"
_CASES = "tests/segments/selector/test_cases.py"
_TIMES = "tests/clients/test_times.py"
_SEARCH = "tests/segments/search/test_search.py"
_FINDING = "tests/clients/test_finding.py"
_PAGES = "tests/e2e/test_documentation.py"  # the example of the page is run
_USERS = "tests/auth/test_users.py"
_HTTP = "tests/http_api/test_found_messages.py"
_RIGHTS_TESTS = "tests/auth/test_rights.py"
_SUPER = "tests/clients/test_super_streams.py"
_CLIENT = "tests/clients/test_client.py"
_POSITION = "tests/clients/test_position.py"

_WAL = "tests/broker/tier/test_wal.py"
_UNREADABLE = "tests/segments/test_unreadable.py"
_RECOVERY = "tests/segments/recovery/test_recovery.py"

SENTENCES: dict[str, dict[str, str]] = {
    "docs/internals/durability.md": {
        "has it, and all messages of the stream before it | nothing confirmed is lost | nothing "
        "confirmed is lost | nothing confirmed is lost": _WAL,
        "With `store` they get it when the store has it, so that neither a power failure nor the "
        "loss of the machine takes it back.": _WAL,
        "Streams with `stream-confirm=store` confirm only what is in the tier": _WAL,
        "nothing confirmed is lost": _LOST,
        "the last second is lost, and messages that arrived during the flush": _LOST,
        "With `always`, consumers too get a message only when it has been flushed, so a power "
        "failure never takes back a message that one of them has seen.": _SEEN,
        "No later message gets the offset of one of those": _OFFSETS,
        "whoever asks for the offset behind the last message that it has seen begins with the "
        "first one that was stored after the power failure": _PASSED,
        "What was confirmed is there after a crash, as far as the table above says": _LOST,
        "What survives a crash is a prefix of what was published: in order, without gaps, nothing "
        "invented, nothing changed": _GAPS,
        "A message that a named publisher sends again is stored once, also after a crash; one that "
        "was lost is taken again": _ONCE,
        "The offset of a message that a reader may have seen is never given to another message of "
        "that stream, even if the first one is lost; so no reader passes over a message": _OFFSETS,
        "A filtered consumer misses no match, whatever is left of the files that filters are "
        "in": _PASSED,
        "Stored offsets that the server has reported are there, as P1 says": _STORED,
        "What is declared (streams, users, bindings) is there once it is answered, all of a change "
        "or nothing": _EXPLAINED,
        "A crash while recovery is at work does no harm": _LOST,
        "Damage before the checkpoint costs the messages that are in the damaged place, and no "
        "others": _UNREADABLE,
        "An error of the disk is never taken for success": _LOST,
        "Nothing that might be of use is deleted: it goes into `quarantine` or "
        "`orphans`": _RECOVERY,
        "A search misses no match, whatever is left of the files that keys are in": _WALK,
        "What was truncated stays away once it is answered, and nothing behind it goes with "
        "it": "what is truncated stays away",
        "A gap is no loss: nothing in it is reported, counted or lagged behind.": _FIGURES,
        "What is stored as a consumer's offset behind the end is cut to the last message when the "
        "log is opened.": _OTHER_STATES,
    },
    "docs/concepts/streams.md": {
        "declared with `--confirm store`, it confirms a message when the store has it, so that the "
        "loss of the whole machine": _WAL,
        "Reading removes nothing, so any number of consumers can read a stream, each from any "
        "place, as often as they like.": _PASSED,
        "Offsets never change, and no message is ever moved.": _OFFSETS,
        "after a machine went down while a stream was written, the next message gets an offset "
        "that is higher by 4,294,967,296, so that none is ever that of two messages.": _OFFSETS,
        "Whole segments go, never parts of them, and the newest one stays": _RETENTION,
        "A **publisher** gets a **confirm** for every message that is stored.": _CONFIRMED,
        "the server remembers the highest number of each name and stores each message once.": _ONCE,
        "So it must not be reached while one below it is missing.": _GAPS,
        "it stores nothing behind it either, until the publisher is declared again": _GAPS,
        "Then the publisher goes on with the number that was refused": _GAPS,
        "A publisher without a name loses nothing but the messages that are refused.": _LOST,
        "that message; the oldest one if it has been deleted; the next one if no message has "
        "that offset": _PASSED,
        "the first chunk that was stored at that time or later": _TIMES,
        "after the offset that a consumer of this name has stored": _PASSED,
        "leave out the messages that say they were created before that time.": _TIMES,
        "a slow consumer delays only itself, and neither publishers nor other consumers wait for "
        "it.": _WAITS,
        "After a crash it sees the messages since the last stored offset again.": _PASSED,
        "of the consumers that share a name, the server lets one at a time be active.": _ACTIVE,
        "Within a partition the order is kept.": "tests/clients/test_super_streams.py",
        "Consumers that read all partitions as single active consumers share them out among "
        "themselves.": "tests/broker/streams/test_groups.py",
        "so a stream can be larger than the disk, outlive the machine, and be read from "
        "others.": _LOST,
    },
    "docs/concepts/selectors.md": {
        "exactly those messages come out for which the condition is true.": _EXACT,
        "the client subscribes with the filter value `EU`, and the server skips the other "
        "chunks.": _PASSED,
        "Messages without a filter value may still match, if the stream's filter contract is "
        "lenient. The client asks for them, too": _PASSED,
        "Over AMQP 0-9-1 the server evaluates the selector itself, and sends matching messages "
        "only.": _EXACT,
        "From then on, the server evaluates it once, when messages are published, and marks the "
        "chunks that have a match.": _PASSED,
        "Consumers of the group are sent marked chunks only, and those from before the "
        "registration": _PASSED,
        "A message matches if the result is true.": _CASES,
        "no message can stop a consumer by what it contains.": _CASES,
        "A string that spells a number compares with numbers.": _CASES,
    },
    "docs/how-to/find.md": {
        "which searches the stream and sends the messages that match, and no others.": _FOUND,
        "It needs the right to read the stream.": _RIGHTS,
        "A message is found as soon as it is confirmed.": _FOUND,
        "The oldest comes first, or with `--newest` the newest": _WALK,
        "With several keys, a message that has any of them is found.": _SEARCH,
        "`--latest` finds the newest message of each key": _SEARCH,
        "**Keys are compared exactly**": _SEARCH,
        "**Numbers are compared by value**": _SEARCH,
        "both ends belong to the range.": _SEARCH,
        "All conditions have to be true together, also beside keys and times": _FOUND,
        "the search is complete; no messages match | no other message matches": _WALK,
        "A search sees what was in the stream when its first page began, whatever is published "
        "in the meantime.": _WALK,
        "A token stays good when the server restarts, and when retention removes messages that "
        "the search has not reached; those are not found any more.": _WALK,
        "The token of another search or another stream is refused.": _FINDING,
        "What an index does not cover is searched chunk by chunk, so nothing is missed": _FOUND,
        "Messages of damaged chunks cannot be found: the command says how many there "
        "are": "tests/segments/search/test_faults.py",
        "Others are served meanwhile.": _HELD,
        "All that is on the disk is then indexed in the background.": (
            "tests/broker/streams/test_key_indexer.py"
        ),
        "what is asked of them by a new key is found as well": "tests/segments/search/test_cold.py",
        "The iteration fetches pages as they are needed, and goes on when a lost connection is "
        "back.": _WALK,
        "Without `limit=` it ends when everything has been found.": _WALK,
        "Go on until `complete` is true.": _HTTP,
        "A user has one search at a time over HTTP; another one is answered with status 429": _HTTP,
        "A search ends when its client closes the connection.": _HTTP,
        "each message that is found was compared, and none is missing": _FOUND,
    },
    "docs/how-to/python-client.md": {
        "Leaving a producer's block waits until the server has confirmed all its messages": _LOST,
        "`flush` waits until all are confirmed, and raises `PublishFailed` if the server refused "
        "some.": _GAPS,
        "With a `datetime` the first messages are those that were stored then or later": _TIMES,
        "the server sends chunks that may hold them, and the consumer picks the messages.": _EXACT,
        '`"stored"` begins with the message after the stored one, and with the first message if '
        "nothing is stored.": _PASSED,
        "after a crash, the messages since the last stored offset come again.": _PASSED,
        "its messages have numbers, their *publishing ids*, and the server stores each number "
        "once.": _ONCE,
        "give them to `send`, and the whole program can be run again": _GAPS,
        "nothing behind it is stored either, so that no number is ever left out": _GAPS,
        "whose `refused` begins with that message and has all behind it.": _CLIENT,
        "continuing after the last number that the server has of this name.": _ONCE,
        "consumers continue after the last message that they had": _GOES_ON,
        'single active consumers, too, and those that began at `"stored"` behind the offset that '
        "is stored by then, if another of the group has got further": _GOES_ON,
        "producers send again what was not confirmed": _LOST,
        "questions are asked again, all of them.": "tests/clients/test_reconnect.py",
        "they may have been carried out.": _EXPLAINED,
        "goes on with the first message that is there.": _PASSED,
        "goes on where the stream ended, so that no new message is left out": _PASSED,
        "all of it is new, whatever `offset=` was": _POSITION,
        "With `until_end=True` the iteration ends, where what was there at the beginning is not "
        "there any more.": _WAITS,
        "`store_offset` does not store them, and none is stored again.": _POSITION,
        "It is stored again, once, unless the server has the same or a higher one.": _POSITION,
        "Of the consumers with the same name on a stream, one at a time gets messages.": _ACTIVE,
        "so that the next one continues where the last one stopped": _PASSED,
        "Messages with the same key stay in order": _SUPER,
        "Leaving the block of a `super_producer` waits for every partition, also when one of "
        "them is gone": _LOST,
        "which names each partition with messages that are not stored, how many, and why.": _LOST,
        "Everything that the library raises on purpose is a `StreamError`": _CLIENT,
        "a chunk does not hold what it announces; iterating again continues behind it": _CLIENT,
    },
    "docs/how-to/users.md": {
        "It is an administrator with all permissions, and, as in RabbitMQ, it can log in from "
        "this machine only.": _USERS,
        "All doors have the same users": _EXPLAINED,
        "A new user may do nothing.": _RIGHTS,
        "Ada can publish to the stream and read it, and nothing else": _RIGHTS,
        "An expression is searched for anywhere in the name": _RIGHTS_TESTS,
        "publishing needs *write*, consuming *read*, creating and deleting a stream "
        "*configure*.": _RIGHTS,
        "An exchange is written to by publishing and by being bound to, and read by binding "
        "something to it.": _RIGHTS_TESTS,
        "Changes hold at once.": _GIVEN,
        "Connections and requests of a deleted user end, and of one with another password those "
        "that have entered with the old one": _RIGHTS,
        "so do publishers and consumers that have lost their permission.": _RIGHTS,
        "Only `guest` is restricted to this machine.": _USERS,
        "sees everything, and changes nothing without permission": (
            "tests/http_api/test_entitled.py"
        ),
        "A user enters only those for which it has a permission": _RIGHTS,
        "Deleting a virtual host deletes all its streams.": _EXPLAINED,
        "A wrong one is answered after three seconds; after ten failures from one address, "
        "attempts from it are limited to one per second.": _USERS,
        "Users that have logged in since the server started are not delayed by the guesses of "
        "others.": _USERS,
    },
}
