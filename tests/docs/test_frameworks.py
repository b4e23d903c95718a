"""The examples of the frameworks guide, each in its own process, as a user would lay it out."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/guides/frameworks.md").read_text("utf-8")


@pytest.fixture
def run(tmp_path: Path, qworker_store: str, request: pytest.FixtureRequest):
    """Write the files of a section, and run a program beside them; returns what it printed."""

    def run(heading: str, program: str, **files: str) -> str:
        section = re.search(rf"^## {heading}.*?\n(.*?)(?=^## |\Z)", PAGE, re.DOTALL | re.MULTILINE)
        assert section is not None
        blocks = re.findall(
            r"^```python\n# (\S+)\n(.*?)^```$", section[1], re.DOTALL | re.MULTILINE
        )
        for name, code in [*blocks, *((f"{name}.py", code) for name, code in files.items())]:
            path = tmp_path / name
            path.parent.mkdir(exist_ok=True)
            path.write_text(code)
        done = subprocess.run(
            [sys.executable, "-W", "error", "-c", program],
            cwd=tmp_path,
            env={
                **{k: v for k, v in os.environ.items() if not k.startswith("QWORKER")},
                "QWORKER_URL": qworker_store,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    return run


#: Another namespace than that of the example next to it, and a drain that shows what is wrong.
DRAIN = "from qworker.testing import drain\napp.namespace = '{name}'\n"


def test_tasks_of_several_modules_are_one_app(run) -> None:
    """Known by the module that imports them all, under their names."""
    out = run(
        "Several modules of tasks",
        "from shop.worker import app\n"
        + DRAIN.format(name="several")
        + "assert sorted(app.tasks) == ['reports.send', 'send_email'], app.tasks\n"
        "from shop.emails import send_email\nfrom shop.reports import send\n"
        "send_email.send('a@b.c')\nsend.send('monday')\n"
        "app.queue('emails').send({'task': 'send_email', 'args': ['by@name']})\n"
        "assert drain(app).handled == 3\n",
        **{"shop/__init__": ""},
    )
    assert out.splitlines() == ["sent to a@b.c", "sent to by@name", "report of monday"]


@pytest.mark.needs("django")
def test_django_sends_on_commit_and_handles_with_its_models(run) -> None:
    """The message is there after the commit, and the handler finds the row."""
    settings = (
        "SECRET_KEY = 'x'\nUSE_TZ = True\n"
        "INSTALLED_APPS = ['django.contrib.auth', 'django.contrib.contenttypes']\n"
        "DATABASES = {'default': {'ENGINE': 'django.db.backends.sqlite3', 'NAME': 'db.sqlite'}}\n"
        "DEFAULT_AUTO_FIELD = 'django.db.models.BigAutoField'\n"
    )
    out = run(
        "Django",
        "from shop.worker import app\n"
        + DRAIN.format(name="django")
        + "from django.core.management import call_command\n"
        "call_command('migrate', verbosity=0)\n"
        "from shop.signup import sign_up\nsign_up('ada')\n"
        "assert drain(app).handled == 1\n",
        **{"shop/__init__": "", "shop/settings": settings},
    )
    assert out == "hello ada\n"


@pytest.mark.needs("flask")
@pytest.mark.nightly("test_django_sends_on_commit_and_handles_with_its_models")
def test_flask_sends_from_a_view_and_handles_in_its_context(run) -> None:
    """The view answers with the message id."""
    out = run(
        "Flask",
        "from shop import app, web\n"
        + DRAIN.format(name="flask")
        + "answer = web.test_client().post('/orders/a@b.c')\n"
        "assert answer.status_code == 200 and len(answer.json['message']) == 20\n"
        "assert drain(app).handled == 1\n",
    )
    assert out == "shop@example.org writes to a@b.c\n"


@pytest.mark.needs("fastapi", "httpx")
@pytest.mark.nightly("test_django_sends_on_commit_and_handles_with_its_models")
def test_fastapi_sends_from_an_async_endpoint(run) -> None:
    """And closes its connections with the loop."""
    out = run(
        "FastAPI",
        "import asyncio\nimport httpx\nfrom shop import app, lifespan, web\n"
        + DRAIN.format(name="fastapi")
        + "async def main():\n"
        "    async with lifespan(web):\n"
        "        transport = httpx.ASGITransport(app=web)\n"
        "        async with httpx.AsyncClient(transport=transport, base_url='http://x') as client:\n"
        "            answer = await client.post('/orders/a@b.c')\n"
        "    assert len(answer.json()['message']) == 20\n"
        "asyncio.run(main())\n"
        "assert drain(app).handled == 1\n",
    )
    assert out == "sent to a@b.c\n"


def test_a_forked_process_sends_over_its_own_connections(run) -> None:
    """The parent has sent before, as the master of a server may."""
    out = run(
        "gunicorn",
        "import os\nfrom qworker import QWorker\napp = QWorker('forks')\n"
        "@app.task\ndef note(who: str) -> None:\n    print(who)\n"
        "from qworker.testing import drain\n"
        "note.send('parent')\n"
        "pid = os.fork()\n"
        "if pid == 0:\n    note.send('child')\n    os._exit(0)\n"
        "assert os.waitpid(pid, 0)[1] == 0\n"
        "note.send('parent again')\n"
        "assert drain(app).handled == 3\n",
    )
    assert out.splitlines() == ["parent", "child", "parent again"]


@pytest.mark.needs("sentry_sdk")
@pytest.mark.nightly("test_a_trace_continues_in_the_handler_and_in_its_sends")
def test_sentry_hears_of_failures_with_their_message(run) -> None:
    """Of a failure and of a Bury; not of a Release, nor of what succeeded."""
    out = run(
        "Sentry",
        "import sentry_sdk\n"
        "from qworker import Bury, QWorker, Release\n"
        "from errors import Sentry\n"
        "heard = []\n"
        "sentry_sdk.init(dsn='http://key@localhost/1', before_send=lambda e, h: heard.append(e))\n"
        "app = QWorker('sentry')\napp.use(Sentry())\n"
        "@app.task(max_receives=1)\ndef end(how: str) -> None:\n"
        "    if how == 'fail':\n        raise ValueError(how)\n"
        "    if how == 'bury':\n        raise Bury('no')\n"
        "    if how == 'release':\n        raise Release('1m')\n"
        "from qworker.testing import drain\n"
        "ids = {how: end.send(how) for how in ('well', 'release', 'fail', 'bury')}\n"
        "drain(app, errors='collect', include_delayed=False)\n"
        "print([(e['tags']['task'], e['contexts']['message']['outcome']) for e in heard])\n"
        "assert [e['contexts']['message']['id'] for e in heard] == [ids['fail'], ids['bury']]\n",
    )
    assert out.splitlines()[-1] == "[('end', 'buried'), ('end', 'buried')]"


@pytest.mark.needs("opentelemetry.sdk")
def test_a_trace_continues_in_the_handler_and_in_its_sends(run) -> None:
    """One trace from the sender over the handler to the handler of its message."""
    out = run(
        "OpenTelemetry",
        "from opentelemetry import trace\n"
        "from opentelemetry.sdk.trace import TracerProvider\n"
        "from opentelemetry.sdk.trace.export import SimpleSpanProcessor\n"
        "from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter\n"
        "spans = InMemorySpanExporter()\n"
        "provider = TracerProvider()\n"
        "provider.add_span_processor(SimpleSpanProcessor(spans))\n"
        "trace.set_tracer_provider(provider)\n"
        "from qworker import QWorker\nfrom qworker.testing import drain\nfrom tracing import Traces\n"
        "app = QWorker('traces')\napp.use(Traces())\n"
        "@app.task\ndef first() -> None:\n    second.send()\n"
        "@app.task(max_receives=1)\nasync def second() -> None:\n    raise ValueError\n"
        "with trace.get_tracer('web').start_as_current_span('request'):\n    first.send()\n"
        "drain(app, errors='collect')\n"
        "found = spans.get_finished_spans()\n"
        "assert len({s.context.trace_id for s in found}) == 1\n"
        "by_name = {s.name: s for s in found}\n"
        "assert by_name['process second'].parent.span_id == by_name['process first'].context.span_id\n"
        "print([(s.name, s.status.status_code.name) for s in found])\n",
    )
    assert out.splitlines()[-1] == (
        "[('request', 'UNSET'), ('process first', 'UNSET'), ('process second', 'ERROR')]"
    )
