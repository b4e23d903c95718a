"""The example of emails: tried again, buried, sent once."""

from __future__ import annotations

import smtplib

import pytest

from examples import emails
from qworker.testing import drain


@pytest.fixture
def app(qworker_bind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SMTP_HOST", raising=False)
    return qworker_bind(emails.app)


def test_an_email_is_rendered_and_delivered(app, tmp_path):
    emails.send_email.send("ada@example.org", "reminder", "<1@example.org>", name="Ada")
    assert drain(app).handled == 1
    text = (tmp_path / "outbox" / "1@example.org.eml").read_text()
    assert "To: ada@example.org" in text
    assert "We kept your seat, Ada." in text


def test_a_mail_server_that_is_down_is_asked_again(app, monkeypatch):
    tries = []

    def deliver(email):
        tries.append(email["To"])
        if len(tries) < 3:
            raise ConnectionRefusedError

    monkeypatch.setattr(emails, "deliver", deliver)
    emails.welcome("ada@example.org", 1)
    drained = drain(app, errors="collect")
    assert (drained.handled, drained.failed) == (1, 2)


@pytest.mark.parametrize(
    ("to", "template", "reason"),
    [
        ("nobody", "welcome", "'nobody' is not an address"),
        ("a@b.c", "other", "no such template: 'other'"),
    ],
)
def test_a_permanent_error_is_dead_at_once(app, to, template, reason):
    emails.send_email.send(to, template, "<1@example.org>")
    drained = drain(app)
    assert drained.failed == 0
    assert [dead_letter.error for dead_letter in drained.dead] == [reason]


def test_a_refused_recipient_is_buried(app, monkeypatch):
    def deliver(email):
        raise smtplib.SMTPRecipientsRefused({email["To"]: (550, b"no such user")})

    monkeypatch.setattr(emails, "deliver", deliver)
    emails.welcome("gone@example.org", 1)
    assert "refuses gone@example.org" in drain(app).dead[0].error


def test_a_customer_is_not_welcomed_twice_while_one_email_is_under_way(app):
    assert emails.welcome("ada@example.org", 7) == emails.welcome("ada@example.org", 7)
    assert drain(app).handled == 1
