"""`qworker send`."""

from __future__ import annotations

import pytest


def bodies(shop, name: str = "emails") -> list[bytes]:
    return [message.body for message in shop.queue(name).peek(1000)]


def test_a_body_is_sent_byte_for_byte_and_its_id_printed(run, shop):
    """The id alone on stdout, fit for a variable of the shell."""
    ran = run("send", "emails", '{"a": 1}')

    assert ran.code == 0
    (stored,) = shop.queue("emails").peek()
    assert ran.out == f"{stored.id}\n"
    assert stored.body == b'{"a": 1}'


def test_a_new_queue_is_noted_with_the_one_that_may_be_meant(run, shop):
    """A mistyped name makes a queue that no worker receives from: that is said at once."""
    shop.send("emails")

    assert (
        run("send", "emials", "{}").err == "note: queue 'emials' is new; did you mean 'emails'?\n"
    )
    assert run("send", "emails", "{}").err == ""


def test_a_task_call_is_written_from_json_arguments(run, shop):
    """Arguments are JSON, so that their types are kept."""
    run(
        "send", "emails", "--task", "send_email",
        "--arg", '"a@b.c"', "--arg", "12345678901234567890", "--kwarg", 'urgent={"now": true}',
    )  # fmt: skip

    assert bodies(shop) == [
        b'{"task":"send_email","args":["a@b.c",12345678901234567890],"kwargs":{"urgent":{"now":true}}}'
    ]


def test_options_reach_the_message(run, shop):
    """Delay, time to live, priority, unique key and max receives."""
    run(
        "send", "emails", "{}", "--delay", "1h", "--ttl", "2h", "--priority", "4",
        "--unique", "a b", "--max-receives", "9",
    )  # fmt: skip

    (stored,) = shop.queue("emails").peek(state="delayed")
    assert stored.at_ms is not None
    assert stored.at_ms - stored.sent_ms == 3_600_000
    assert int(stored.flags["x"]) - stored.sent_ms == 7_200_000
    assert (stored.flags["p"], stored.flags["u"], stored.flags["m"]) == ("4", "a b", "9")


def test_options_without_a_value_reach_the_message(run, shop):
    """`--ordered` and `--no-ordered`, `--no-fsync`: the group is one whose messages run one at a time, or not."""
    ordered = run("send", "emails", "{}", "--group", "acme", "--ordered", "--no-fsync")
    fair = run("send", "emails", "{}", "--group", "acme", "--no-ordered")

    assert (ordered.code, fair.code) == (0, 0), ordered.err
    groups = {message.id: message.flags["g"] for message in shop.queue("emails").peek(10)}
    assert groups[ordered.out.strip()] != groups[fair.out.strip()] == "acme"


@pytest.mark.bad_input("body or key: unique key held, another body")
def test_a_unique_key_that_is_held_sends_nothing(run, shop):
    """The id of the message that holds the key is printed, and a note says so."""
    first = run("send", "emails", "{}", "--unique", "k")
    second = run("send", "emails", "{}", "--unique", "k")

    assert second.out == first.out
    assert second.err == "nothing was sent: this message already holds the unique key\n"
    assert run("send", "emails", "{}", "--unique", "k", "--json").json["sent"] == 0


@pytest.mark.parametrize("args", [["-"], []])
def test_a_pipe_gives_the_body(run, shop, args):
    """With `-`, and without a body where stdin is not a terminal."""
    run("send", "emails", *args, stdin=b'{"a": 1}\n')

    assert bodies(shop) == [b'{"a": 1}\n']


def test_an_empty_pipe_is_refused_unless_asked_for(run, shop):
    """A cron job without stdin must not send empty messages; `-` sends what there is."""
    refused = run("send", "emails", stdin=b"")
    sent = run("send", "emails", "-", stdin=b"")

    assert refused.code == 2
    assert refused.err.startswith("error: nothing to send: the pipe is empty")
    assert sent.code == 0
    assert bodies(shop) == [b""]


def test_a_file_gives_the_body(run, shop, tmp_path):
    """Byte for byte."""
    file = tmp_path / "body"
    file.write_bytes(b"\x00\xff\n")

    ran = run("send", "emails", "--file", str(file))

    assert bodies(shop) == [b"\x00\xff\n"]
    assert "note: the body is not JSON: only receivers of raw bytes" in ran.err


def test_lines_are_messages_in_their_order(run, shop):
    """Each line that is not empty, without its newline; calls hold up to 1,000."""
    lines = b"".join(b'{"n": %d}\r\n\n' % number for number in range(2500))

    ran = run("send", "emails", "--lines", stdin=lines)

    assert ran.out.startswith("sent 2,500 messages to emails in ")
    inspection = shop.queue("emails").inspect()
    assert inspection.ready == 2500
    assert bodies(shop)[:2] == [b'{"n": 0}', b'{"n": 1}']


def test_lines_as_json_name_first_and_last(run, shop):
    """Ids are listed up to 1,000."""
    few = run("send", "emails", "--lines", "--json", stdin=b"1\n2\n").json
    many = run("send", "emails", "--lines", "--json", stdin=b"1\n" * 1001).json

    assert few["ids"] == [few["first_id"], few["last_id"]]
    assert (few["queue"], few["sent"], few["duplicates"]) == ("emails", 2, 0)
    assert (many["sent"], many["ids"]) == (1001, None)


@pytest.mark.bad_input("body or key: a bad one among many")
def test_a_line_that_is_too_large_stops_all_of_them(run, shop):
    """Everything is checked before the first call; the error names the line and the queue's own limit."""
    shop.configure("emails", maxsize=1024)

    ran = run("send", "emails", "--lines", stdin=b"1\n" * 1500 + b"x" * 1025 + b"\n")

    assert ran.code == 2
    assert ran.err == (
        "error: line 1501: is 1025 bytes; the limit (maxsize) is 1024 bytes; nothing was sent\n"
    )
    assert shop.queue("emails").inspect().ready == 0


@pytest.mark.bad_input("body or key: larger than maxsize")
def test_the_limit_of_the_queue_counts_in_both_directions(run, shop):
    """A queue that takes larger bodies takes them from here too."""
    shop.configure("emails", maxsize=1024 * 1024)

    assert run("send", "emails", "-", stdin=b"1" * 500_000).code == 0
    assert run("send", "other", "-", stdin=b"1" * 500_000).err.endswith(
        "error: body: is 500000 bytes; the limit (maxsize) is 262144 bytes\n"
    )


@pytest.mark.slow
def test_a_body_without_end_is_refused(process, shop):
    """What is not a file, or a pipe that never ends, is read up to what any queue takes."""
    device = process("send", "emails", "--file", "/dev/zero")

    assert device.code == 2
    assert device.err == (
        "error: body: is larger than 64 MiB; the limit (maxsize) is 262144 bytes\n"
    )
    assert shop.dump() == {}


def test_the_same_message_many_times(run, shop):
    """--count makes a load."""
    ran = run("send", "emails", "{}", "--count", "1200")

    assert ran.out.startswith("sent 1,200 messages to emails in ")
    assert shop.queue("emails").inspect().ready == 1200


def test_a_queue_that_fills_up_on_the_way_says_how_far_it_came(run, shop):
    """The first call was stored, the second refused as a whole."""
    shop.configure("emails", maxlen=1500)

    ran = run("send", "emails", "{}", "--count", "2000")

    assert ran.code == 1
    assert "1,000 of 2,000 messages were sent, in order; the rest was not" in ran.err
    assert "maxlen is 1500" in ran.err
    assert "qworker queue set emails maxlen=3000" in ran.err
    assert shop.queue("emails").inspect().ready == 1000


def test_large_bodies_go_in_smaller_calls(run, shop):
    """4 MiB at once at most, so that no call blocks the server for long."""
    shop.configure("emails", maxsize=1024 * 1024)

    ran = run("send", "emails", "--lines", stdin=(b"1" * 1_000_000 + b"\n") * 10)

    assert ran.code == 0
    assert shop.queue("emails").inspect().ready == 10


def test_a_paused_queue_refuses_with_the_verb_that_opens_it(run, shop):
    """What to do next is part of the error."""
    shop.send("emails")
    shop.queue("emails").pause("in")

    ran = run("send", "emails", "{}")

    assert ran.code == 1
    assert ran.err == (
        "error: queue 'emails' is paused for input; nothing was sent (qworker queue resume emails)\n"
    )


@pytest.mark.parametrize(
    ("args", "problem"),
    [
        (["{}", "--file", "x"], "BODY and --file exclude each other"),
        (["{}", "--task", "x"], "BODY and --task exclude each other"),
        (["{}", "--arg", "1"], "--arg and --kwarg require --task"),
        (["--lines", "--task", "x"], "--lines excludes --count and --task"),
        (["--lines", "--count", "2"], "--lines excludes --count and --task"),
        (["{}", "--count", "2", "--unique", "k"], "--unique admits one message"),
        (["--task", "x", "--arg", "a@b"], "--arg: 'a@b' is not JSON; write JSON, text in double"),
        (["--task", "x", "--arg", "NaN"], "--arg: 'NaN' is not JSON"),
        (["--task", "x", "--kwarg", "1"], "--kwarg: '1' has no name; write NAME=JSON"),
        (["--task", "x", "--kwarg", "a=b"], "--kwarg a: 'b' is not JSON"),
        (["--task", "1x"], "--task: '1x' is not a valid name"),
        (["--file", "/nonexistent"], "--file: '/nonexistent' cannot be read"),
        (["--file", "/tmp"], "--file: '/tmp' cannot be read"),
        (["{}", "--count", "0"], "invalid value for '--count'"),
        (["{}", "--priority", "10"], "--priority: 10 is out of range"),
        (["{}", "--priority", "٥"], "--priority: "),
        (["{}", "--delay", "-1"], "--delay: "),
        (["{}", "--delay", "1e999"], "--delay: "),
        (["{}", "--delay", "nan"], "--delay: 'nan' is not a duration"),
        (["{}", "--delay", ""], "--delay: is empty"),
        (["{}", "--ttl", "5 m"], "--ttl: '5 m' is not a duration"),
        (["{}", "--max-receives", "0"], "--max-receives: 0 is out of range"),
        (["{}", "--unique", "x" * 257], "--unique: "),
        (["{}", "--priorty", "1"], "no such option '--priorty'. Did you mean '--priority'?"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(run, shop, args, problem):
    """One line, exit code 2."""
    before = shop.dump()

    ran = run("send", "emails", *args, stdin=b"")

    assert ran.code == 2
    assert problem.lower() in ran.err.lower()
    assert ran.err.startswith("error: ")
    assert ran.err.count("\n") == 1
    assert shop.dump() == before


# -- tasks that are none -----------------------------------------------------------------------


def noted(ran):
    return [line for line in ran.err.splitlines() if "task" in line]


def test_a_task_that_no_worker_has_is_noted_with_the_one_that_may_be_meant(run, shop):
    """Not refused: the worker that has it may be on its way."""
    shop.send("emails")
    shop.add_worker("a", tasks=["send_email", "send_letter"])
    shop.add_worker("b", tasks=["receive"])
    shop.add_worker("c", queues=["other"], tasks=["send_mail"])

    near = run("send", "emails", "--task", "send_mail")
    far = run("send", "emails", "--task", "xyz")
    right = run("send", "emails", "--task", "receive")

    assert noted(near) == [
        "note: no worker of 'emails' has a task 'send_mail'; did you mean 'send_email'?"
    ]
    assert noted(far) == [
        "note: no worker of 'emails' has a task 'xyz'; they have receive, send_email, send_letter"
    ]
    assert (noted(right), near.code, far.code, right.code) == ([], 0, 0, 0)


def test_says_if_it_cannot_check_that_a_task_exists(run, shop):
    """No worker takes from the queue, or one has too many tasks to tell them."""
    shop.send("emails")
    shop.add_worker("gone", age_ms=60_000, tasks=["send_email"])

    nobody = run("send", "emails", "--task", "send_mail")
    shop.add_worker("large", tasks=None)
    untold = run("send", "emails", "--task", "send_mail")

    assert noted(nobody) == [
        "note: no worker receives from 'emails' now, so task 'send_mail' was not checked"
    ]
    assert noted(untold) == [
        "note: a worker of 'emails' does not report its tasks, so task 'send_mail' was not checked"
    ]


def test_no_lines_send_no_messages(run, shop):
    """Nothing is sent, no queue is created, and nothing is said of a body."""
    ran = run("send", "emails", "-", "--lines", stdin=b"\n\n")

    assert (ran.code, ran.out.startswith("sent 0 messages to emails")) == (0, True)
    assert ran.err == ""
    assert shop.dump() == {}
