"""The examples of the guide: each application is made as written, and asked by the right and the wrong people."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT

pytestmark = pytest.mark.slow

PAGE = (ROOT / "docs/guides/web.md").read_text("utf-8")
ASK = """
from tests.web.conftest import Browser
import logging; logging.disable()
"""


@pytest.fixture
def run(tmp_path: Path, store_url: str):
    """Write the examples, and run a program beside them; returns what it printed."""

    def run(program: str) -> str:
        for name, code in re.findall(
            r"^```python\n# (\S+)\n(.*?)^```$", PAGE, re.DOTALL | re.MULTILINE
        ):
            (tmp_path / name).write_text(code)
        done = subprocess.run(
            [sys.executable, "-c", ASK + program],
            cwd=tmp_path,
            env={
                **os.environ,
                "QWORKER_URL": store_url,
                "PYTHONPATH": f"{ROOT}{os.pathsep}{tmp_path}",
            },
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout

    return run


def test_a_header_counts_from_the_proxy_only(run) -> None:
    printed = run("""
from types import SimpleNamespace as Request
from shop_ops import authorize
def ask(host, **headers):
    access = authorize(Request(headers=headers, client=Request(host=host)))
    return access and (access.user, sorted(access.rights))
print(ask("10.0.0.7", **{"X-Forwarded-Email": "ada@example.org"}))
print(ask("10.0.0.7", **{"X-Forwarded-Email": "eve@example.org"}))
print(ask("10.0.0.8", **{"X-Forwarded-Email": "ada@example.org"}), ask("10.0.0.7"))
""")
    assert printed.splitlines() == [
        "('ada@example.org', ['operate', 'view'])",
        "('eve@example.org', ['view'])",
        "None None",
    ]


@pytest.mark.needs("fastapi", "itsdangerous")
@pytest.mark.nightly("test_django_lets_its_own_staff_in")
def test_fastapi_lets_its_own_users_in(run) -> None:
    printed = run("""
from fastapi_shop import api
from starlette.requests import Request
@api.get("/login")
def login(request: Request):
    request.session["user"] = "ada"
browser = Browser(api)
print(browser.get("/ops/queues/").headers["location"])
browser.headers["cookie"] = browser.get("/login").headers["set-cookie"].partition(";")[0]
page = browser.get("/ops/queues/")
print(page.status_code, "ada" in page.text, 'href="/ops/queues/health"' in page.text)
""")
    assert printed.splitlines() == ["/login", "200 True True"]


@pytest.mark.needs("django")
def test_django_lets_its_own_staff_in(run) -> None:
    printed = run("""
from django.conf import settings
settings.configure(
    SECRET_KEY="x", ALLOWED_HOSTS=["*"], USE_TZ=True,
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": "db"}},
    ROOT_URLCONF=__name__, PASSWORD_HASHERS=["django.contrib.auth.hashers.MD5PasswordHasher"],
)
urlpatterns = []
import django; django.setup()
from django.core.management import call_command
call_command("migrate", verbosity=0)
from django.contrib.auth.models import User
from django.test import Client
from django_asgi import application
def ask(path, **user):
    browser = Browser(application)
    if user:
        made = User.objects.create_user(str(user), **user)
        client = Client(); client.force_login(made)
        browser.headers["cookie"] = "sessionid=" + client.cookies["sessionid"].value
    return browser.get(path)
print(ask("/ops/queues/").status_code, ask("/ops/queues/", is_staff=False).status_code)
page = ask("/ops/queues/health", is_staff=True)
print(page.status_code, "read-only" in page.text, 'href="/ops/queues/queues"' in page.text)
print("read-only" in ask("/ops/queues", is_staff=True, is_superuser=True).text)
print(ask("/ops/queuesx").status_code, "qworker" in ask("/ops/queuesx").text)
""")
    assert printed.splitlines() == ["401 401", "200 True True", "False", "404 False"]
