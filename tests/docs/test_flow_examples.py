"""The worked examples of the guide to flow: one module, whose messages keep the limits that its commands set."""

from __future__ import annotations

import re
from typing import Any

import pytest
from click.testing import CliRunner

from qworker.cli.main import cli
from qworker.testing import drain
from tests.docs.blocks import ROOT

_FIRST = "The next three examples are one module"
_NEXT = "## Rate limited by others"


def examples() -> tuple[str, list[list[str]]]:
    """The text of the module, and the words of each command."""
    text = (ROOT / "docs/guides/flow.md").read_text("utf-8")
    text = text[text.index(_FIRST) : text.index(_NEXT)]
    module = "\n".join(re.findall(r"^```python\n(.*?)^```$", text, re.DOTALL | re.MULTILINE))
    commands = re.findall(r"^\$ qworker (.+)$", text, re.MULTILINE)
    return module, [line.replace("'", "").split() for line in commands]


@pytest.mark.slow
def test_the_worked_examples_do_what_they_promise(
    store_url: str, namespace: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five of a customer, a handful of the API; four imports beside clicks; entries in their order."""
    module, commands = examples()
    shop: dict[str, Any] = {}
    exec(module.replace('QWorker("shop")', f"QWorker({namespace!r}, url={store_url!r})"), shop)
    app = shop["app"]
    assert [words[2] for words in commands] == ["crm", "crm", "crm", "work", "work"]
    environ = {"QWORKER_URL": store_url, "QWORKER_NAMESPACE": namespace}
    for words in commands:
        done = CliRunner().invoke(cli, words, env=environ)
        assert done.exit_code == 0, done.output

    for number in range(12):
        shop["book"].send("ada", {"amount": number})
        shop["book"].send("bob", {"amount": number})
    drain(app, queues=["ledger"])
    booked = capsys.readouterr().out.splitlines()
    assert [line for line in booked if line.endswith("ada")] == [f"{n} on ada" for n in range(12)]
    assert booked[:2] == ["0 on ada", "0 on bob"]

    app.queue("crm").set_limit("crm/", rate="1000/s", burst=1000)
    for contact in range(8):
        for customer in (1, 2):
            shop["push"].send(customer, contact)
    taken = app.queue("crm").receive(100)
    assert len(taken) == 10  # five of each customer

    shop["start_imports"].send()
    drain(app, queues=["work"])
    assert "shop 3" in capsys.readouterr().out
    for number in range(9):
        shop["import_shop"].send(number)
        shop["count_click"].send(f"/{number}")
    started = app.queue("work").receive(100)
    assert len(started) == 4 + 9
    app.close()
