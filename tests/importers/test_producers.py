"""Messages of the real producers of RSMQ, RQ and Celery are imported, and a real worker handles them."""

from __future__ import annotations

import json

import pytest

from tests.consumer.driving import until

pytestmark = pytest.mark.slow

APP = """
import datetime, decimal, uuid

@app.task(queue="mails")
def send_mail(mail: dict) -> None:
    note("mail", mail)

@app.task(queue="texts")
def send_text(text: str) -> None:
    note("text", text)

@app.task(queue="jobs")
def add(a: int, b: int = 0) -> None:
    note("add", a, b)

@app.task(queue="jobs")
def book(day: datetime.date, at: datetime.datetime, data: bytes, tags: list[str]) -> None:
    note("book", day.year, at.tzinfo is not None, data.hex(), tags)

@app.task(queue="jobs")
def pay(who: uuid.UUID, sum: decimal.Decimal, data: bytes, at: datetime.datetime) -> None:
    note("pay", who.hex, str(sum), data.hex(), at.year)
"""

RSMQ = """
const RSMQ = require("rsmq");
const redis = require("redis").createClient({path: process.argv[1], db: Number(process.argv[2])});
const rsmq = new RSMQ({client: redis, ns: "old"});
(async () => {
  await rsmq.createQueueAsync({qname: "mails", vt: 45, delay: 0, maxsize: 2048});
  await rsmq.createQueueAsync({qname: "Texts"});
  for (let n = 0; n < 250; n++)
    await rsmq.sendMessageAsync({qname: "mails", message: JSON.stringify({to: n})});
  await rsmq.sendMessageAsync({qname: "mails", message: '{"to": "later"}', delay: 3600});
  for (const text of ["grüße", "007", "[not json", '"quoted"'])
    await rsmq.sendMessageAsync({qname: "Texts", message: text});
  console.log(JSON.stringify(await rsmq.receiveMessageAsync({qname: "mails", vt: 2000})));
  redis.quit();
})();
"""

RQ = """
import datetime, sys, types
from redis import Redis
from rq import Queue, Retry, Callback
from rq.serializers import JSONSerializer

redis = Redis(unix_socket_path=sys.argv[1], db=int(sys.argv[2]))
jobs = Queue("jobs", connection=redis)
for n in range(250):
    jobs.enqueue("shop.tasks.add", n, b=1)
utc = datetime.timezone.utc
at = datetime.datetime(2031, 5, 4, tzinfo=utc)
jobs.enqueue("shop.tasks.book", at.date(), at, b"\\xff\\x00", ("x", "y"))
Queue("jobs", connection=redis, serializer=JSONSerializer).enqueue("shop.tasks.add", 1000)
jobs.enqueue_in(datetime.timedelta(hours=1), "shop.tasks.add", 2000)
jobs.enqueue("shop.tasks.add", 3000, retry=Retry(max=2), ttl=7200)
first = jobs.enqueue("shop.tasks.add", 1, on_success=Callback("shop.tasks.add"))
class Thing:
    def work(self): pass
Thing.__module__ = Thing.work.__module__ = "things"
sys.modules["things"] = types.SimpleNamespace(Thing=Thing)
jobs.enqueue("shop.tasks.add", Thing())
jobs.enqueue("shop.tasks.add", 5, depends_on=first)
jobs.enqueue(Thing().work)
"""

CELERY = """
import datetime, decimal, sys, uuid
from celery import Celery, chain, signature

app = Celery("shop", broker=f"redis+socket://{sys.argv[1]}?virtual_host={sys.argv[2]}")
app.conf.task_default_queue = "jobs"
def send(name, *args, **options):
    return app.send_task("shop.tasks." + name, args, **options)
for n in range(250):
    send("add", n, kwargs={"b": 1})
utc = datetime.timezone.utc
send("pay", uuid.UUID(int=7), decimal.Decimal("1.10"), b"\\xff\\x00", datetime.datetime(2031, 5, 4, tzinfo=utc))
send("add", 2000, countdown=3600)
send("add", 2001, expires=7200)
for priority in (9, 6, 3):
    send("add", 4000 + priority, priority=priority)
send("add", 1, link=signature("shop.tasks.add", args=(1,)))
chain(signature("shop.tasks.add", args=(1,), app=app), signature("shop.tasks.add", app=app))()
send("add", 1, serializer="pickle")
"""


def test_rsmq_messages_are_handled(bring, producers, other, shop, lab):
    """JSON becomes the argument, text stays text; delayed and in flight keep their times, the queue its attributes."""
    taken = json.loads(producers.node(RSMQ, other.socket, str(other.db)))

    flags = ["--prefix", "old", "--queue-map", "Texts=texts"]
    ran = bring("rsmq", *flags, "--task", "mails=send_mail", "--task", "Texts=send_text", "--json")

    assert (ran.code, ran.json["moved"], ran.json["refused"]) == (0, 255, 0)
    mails = next(queue for queue in ran.json["queues"] if queue["queue"] == "mails")
    assert (mails["ready"], mails["delayed"], mails["in_flight"]) == (249, 1, 1)
    inspection = shop.queue("mails").inspect()
    assert (inspection.meta["visibility_ms"], inspection.meta["maxsize"]) == ("45000", "2048")
    hidden, later = shop.queue("mails").peek(10, state="delayed")
    assert (hidden.receives, json.loads(hidden.body)["args"]) == (1, [{"to": 0}])
    assert abs(hidden.at_ms - shop.now_ms() - 2_000_000) < 20_000
    assert int(hidden.flags["f"]) == taken["fr"]
    assert abs(later.at_ms - shop.now_ms() - 3_600_000) < 20_000
    assert abs(hidden.sent_ms - taken["sent"]) < 100
    lab.app(APP)
    with lab.worker():
        until(lambda: len(lab.notes()) >= 253, what="all handled")
    assert sorted(mail["to"] for (mail,) in lab.noted("mail")) == list(range(1, 250))
    assert sorted(lab.noted("text")) == [['"quoted"'], ["007"], ["[not json"], ["grüße"]]
    assert sorted(other.redis.keys()) == [b"old:QUEUES", b"old:Texts:Q", b"old:mails:Q"]
    assert not [name for name in other.redis.hkeys("old:mails:Q") if len(name) >= 32]


def test_rq_jobs_are_handled(bring, producers, other, shop, lab):
    """Pickled and JSON jobs of plain values run; others stay, and the exit code says so."""
    producers.python(RQ, other.socket, str(other.db))

    ran = bring("rq", "--json")

    assert (ran.code, ran.json["moved"]) == (3, 254)
    (jobs,) = ran.json["queues"]
    assert (jobs["ready"], jobs["delayed"]) == (253, 1)
    assert jobs["refused"] == {"dependents": 1, "not_plain": 2}
    assert jobs["left"] == {"waits_for_others": 1}
    details = {job["detail"] for job in jobs["refused_messages"]}
    assert details == {"other jobs wait for it", "its data holds things.Thing (NEWOBJ)"}
    assert other.redis.llen("rq:queue:jobs") == 3
    assert len(other.redis.keys("rq:job:????????-*")) == 4 + 1  # and the dependents of one
    (later,) = shop.queue("jobs").peek(10, state="delayed")
    assert json.loads(later.body) == {"task": "add", "args": [2000]}
    assert abs(later.at_ms - shop.now_ms() - 3_600_000) < 20_000
    retried = shop.queue("jobs").peek(1, newest=True)[0]
    assert retried.flags["m"] == "3"
    assert abs(int(retried.flags["x"]) - shop.now_ms() - 7_200_000) < 20_000
    lab.app(APP)
    with lab.worker():
        until(lambda: len(lab.notes()) >= 253, what="all handled")
    assert lab.noted("book") == [[2031, True, "ff00", ["x", "y"]]]
    assert sorted(lab.noted("add")) == sorted([[n, 1] for n in range(250)] + [[1000, 0], [3000, 0]])


def test_celery_messages_are_handled(bring, producers, other, shop, lab):
    """JSON messages run in the order of their priorities; those with callbacks stay."""
    producers.python(CELERY, other.socket, str(other.db))

    ran = bring("celery", "--json")

    assert (ran.code, ran.json["moved"]) == (3, 256)
    (jobs,) = ran.json["queues"]
    assert jobs["refused"] == {"callbacks": 1, "chain": 1, "content_type": 1}
    assert ran.json["tasks"][0] == {"function": "shop.tasks.add", "task": "add", "messages": 255}
    assert other.redis.llen("jobs") == 3
    inspection = shop.queue("jobs").inspect()
    assert inspection.ready_by_priority == (1, 0, 0, 1, 0, 0, 1, 0, 0, 252)
    (later,) = shop.queue("jobs").peek(10, state="delayed")
    assert abs(later.at_ms - shop.now_ms() - 3_600_000) < 20_000
    assert any("x" in message.flags for message in shop.queue("jobs").peek(1000))
    lab.app(APP)
    with lab.worker():
        until(lambda: len(lab.notes()) >= 255, what="all handled")
    assert lab.noted("pay") == [["0" * 31 + "7", "1.10", "ff00", 2031]]
    assert [a for a, _ in lab.noted("add")][-3:] == [4003, 4006, 4009]

    accepted = bring("celery", "--drop-callbacks", "--json")

    assert (accepted.json["moved"], accepted.json["refused"]) == (2, 1)
    assert other.redis.llen("jobs") == 1
