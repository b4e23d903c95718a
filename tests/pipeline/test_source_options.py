"""Options of a read: what is accepted, and what the errors name."""

from __future__ import annotations

import pickle

import pytest

from qworker.errors import InvalidOptionError
from qworker.pipeline.source.offsets import Position
from qworker.pipeline.source.options import ReadOptions
from qworker.store.url import ServerURL
from tests.tables import each

URL = "redis://reader:s3cret@db.example:6380/2"


def test_names_are_found_in_any_case_and_text_becomes_values():
    # Spark hands them over in lower case.
    options = ReadOptions.of(
        {
            "URL": URL,
            "namespace": "shop",
            "queues": "emails, orders-*",
            "startingoffsets": '{"emails": {"epoch": 5, "entry": 41}}',
            "endingtimestamp": "2031-05-04T10:00:00",
            "maxentriespertrigger": "50",
            "failondataloss": "false",
            "checkpointLocation": "/spark/adds/this",
        }
    )
    assert options.queues == ("emails", "orders-*")
    assert options.starting_offsets == {"emails": Position(5, 41)}
    assert options.ending_timestamp == 1_935_655_200_000
    assert (options.max_entries_per_trigger, options.fail_on_data_loss) == (50, False)
    assert options.table == "journal"


@each(
    "text",
    ["2031-05-04T10:00:00Z", "2031-05-04T12:00:00+02:00", "2031-05-04 10:00", "1935655200000"],
)
def test_a_time_is_iso_or_ms(text):
    assert ReadOptions.of({"startingTimestamp": text}).starting_timestamp == 1_935_655_200_000


def test_load_takes_a_table_as_its_path():
    assert ReadOptions.of({"path": "dead"}).table == "dead"


@each(
    "given, problem",
    [
        ({"maxEntriesPerTriger": "5"}, "option maxEntriesPerTriger: is unknown; did you mean maxEntriesPerTrigger?"),
        ({"maxRows": "5"}, "option maxRows: is unknown; "),
        ({"table": "letters"}, "option table: 'letters' is not accepted; it must be one of journal, queues, messages"),
        ({"fetchSize": "0"}, "option fetchSize: 0 is out of range; it must be an integer from 1 to 10000"),
        ({"fetchSize": "many"}, "option fetchSize: 'many' is not an integer"),
        ({"failOnDataLoss": "maybe"}, "option failOnDataLoss: 'maybe' is neither true nor false"),
        ({"startingTimestamp": "yesterday"}, "option startingTimestamp: 'yesterday' is not accepted; it must be"),
        ({"startingOffsets": "first"}, "option startingOffsets: 'first' is not an offset"),
        ({"endingOffsets": "earliest"}, "option endingOffsets: is before every start"),
        (
            {"startingOffsets": "latest", "startingTimestamp": "5"},
            "option startingTimestamp: is given beside startingOffsets; give one of them",
        ),
        ({"table": "dead", "startingOffsets": "latest"}, "option startingOffsets: does not apply to table dead"),
        ({"table": "queues", "readerName": "a"}, "option readerName: does not apply to table queues"),
        ({"queues": "Emails"}, "option queues: 'Emails' is not accepted; it must be names of queues"),
        ({"queues": "a,"}, "option queues: '' is not accepted"),
        ({"namespace": "a b"}, "option namespace: 'a b' is not a valid name"),
        ({"readerName": "a b"}, "option readerName: 'a b' is not a name"),
    ],
)  # fmt: skip
def test_wrong_values_are_named_with_the_correct_form(given, problem):
    with pytest.raises(ValueError, match=r".") as caught:
        ReadOptions.of(given)
    assert str(caught.value).startswith(problem)


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"table": "dead"}, "option table: dead is not a stream"),
        ({"endingOffsets": "latest"}, "option endingOffsets: is for batch reads"),
        ({"endingTimestamp": "5"}, "option endingTimestamp: is for batch reads"),
    ],
)
def test_a_stream_accepts_only_actions_of_streams(given, problem):
    with pytest.raises(InvalidOptionError) as caught:
        ReadOptions.of(given).check_stream()
    assert str(caught.value).startswith(problem)


def test_a_password_shows_nowhere():
    options = ReadOptions.of({"url": URL})
    assert "s3cret" not in repr(options)
    assert pickle.loads(pickle.dumps(options)).server().password == "s3cret"
    with pytest.raises(InvalidOptionError) as caught:
        ReadOptions.of({"url": "redis://reader:s3 cret@host"})
    assert "cret" not in str(caught.value)


def test_the_url_comes_from_the_environment_variable_that_is_named(monkeypatch):
    monkeypatch.setenv("SHOP_REDIS", URL)
    assert ReadOptions.of({"urlEnv": "SHOP_REDIS"}).server().host == "db.example"
    monkeypatch.delenv("QWORKER_URL", raising=False)
    with pytest.raises(
        InvalidOptionError, match=r"option url: is not given, and QWORKER_URL is not set; set it"
    ):
        ReadOptions.of({}).server()


@pytest.mark.parametrize("url", ["redis+cluster://a:7000,b:7000", "redis+sentinel://a,b/main"])
def test_servers_are_named_as_elsewhere(url):
    assert str(ReadOptions.of({"url": url}).server()) == str(ServerURL.parse(url))
