"""The pytest plugin: its fixtures, and that it costs nothing without them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from qworker import QWorker

pytest_plugins = ["pytester"]


def test_two_tests_on_one_server_never_see_each_others_messages(qworker_bind, qworker_drain):
    first, second = qworker_bind(QWorker("shop")), qworker_bind(QWorker("shop"))
    for app in (first, second):
        app.task(queue="q", name="greet")(_nothing)
    first.tasks["greet"].send()
    assert qworker_drain(second).handled == 0
    assert qworker_drain(first).handled == 1


def test_an_app_uses_its_own_server_again_after_the_test(qworker_store, monkeypatch):
    from qworker.testing import bind

    monkeypatch.setenv("QWORKER_URL", "redis://nowhere.invalid:1")
    app = QWorker("shop")
    with bind(app, qworker_store):
        assert app.namespace.startswith("test-")
        app.queue("q").send(b"x")
    assert app.namespace == "shop"
    assert "nowhere.invalid" in str(app.client.factory.url)


@pytest.mark.slow
def test_the_plugin_imports_nothing_until_a_fixture_is_used():
    """Loading the plugin imports only the package itself."""
    code = (
        "import sys, qworker; before = set(sys.modules); import qworker.testing.plugin; "
        "print(sorted(n for n in set(sys.modules) - before if n.startswith('qworker')))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout
    assert out.strip() == "['qworker.testing', 'qworker.testing.plugin']"


def test_the_package_has_its_public_names():
    import qworker.testing

    assert all(hasattr(qworker.testing, name) for name in qworker.testing.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        _ = qworker.testing.other


@pytest.mark.slow
def test_a_users_test_runs_as_the_guide_shows_it(pytester):
    pytester.makepyfile(
        shop="""
        from qworker import QWorker
        app = QWorker("shop")
        sent = []

        @app.task
        def send_email(to: str) -> None:
            sent.append(to)

        def sign_up(address):
            send_email.send(address)
        """
    )
    pytester.makeconftest(
        """
        import pytest
        import shop as shop_module

        @pytest.fixture
        def shop(qworker_bind):
            return qworker_bind(shop_module.app)
        """
    )
    pytester.makepyfile(
        """
        from qworker.testing import drain
        from shop import sent, sign_up

        def test_a_new_customer_is_welcomed(shop):
            sign_up("a@b.c")
            assert drain(shop).handled == 1
            assert sent == ["a@b.c"]
        """
    )
    result = pytester.runpytest_subprocess("-p", "no:valkey", "-W", "error")
    result.assert_outcomes(passed=1)


def _nothing() -> None: ...
