"""Emails with retries: temporary failures are retried, permanent ones are buried at once.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=emails
    python examples/emails.py ada@example.org nobody        sends two messages
    qworker run examples/emails.py                          delivers them: to $SMTP_HOST, or into ./outbox
    qworker dead ls                                         'nobody' is not an address

At least once means that an email may go out twice, if a worker dies between the delivery and the ack. The sender makes
the Message-ID, so a mail server that checks ids, or a reader, sees that both are the same email.
"""

from __future__ import annotations

import os
import smtplib
import sys
from email.message import EmailMessage
from pathlib import Path

from qworker import Bury, QWorker, Retry

app = QWorker("emails")

TEMPLATES = {
    "welcome": ("Welcome, {name}", "It is good to have you here, {name}."),
    "reminder": ("{name}, you have not been back", "We kept your seat, {name}."),
}


@app.task(
    queue="emails",
    retry=Retry.exponential("5s", cap="1h"),
    max_receives=8,
    time_limit="1m",
    ttl="2d",
)
def send_email(to: str, template: str, message_id: str, name: str = "friend") -> None:
    """Render a template and deliver it. If the mail server does not answer, retry for about a day."""
    email = render(to, template, message_id, name)
    try:
        deliver(email)
    except smtplib.SMTPRecipientsRefused as error:
        raise Bury(f"the mail server refuses {to}: {error}") from error


def render(to: str, template: str, message_id: str, name: str) -> EmailMessage:
    """Make an email. Raises `Bury` for permanent failures."""
    if "@" not in to:
        raise Bury(f"{to!r} is not an address")
    if template not in TEMPLATES:
        raise Bury(f"no such template: {template!r}")
    subject, text = TEMPLATES[template]
    email = EmailMessage()
    email["From"], email["To"], email["Message-ID"] = "shop@example.org", to, message_id
    email["Subject"] = subject.format(name=name)
    email.set_content(text.format(name=name))
    return email


def deliver(email: EmailMessage) -> None:
    """Send an email to the mail server of SMTP_HOST, or write it into ./outbox if that is not set."""
    host = os.environ.get("SMTP_HOST")
    if host:
        with smtplib.SMTP(host, timeout=20) as server:
            server.send_message(email)
        return
    outbox = Path("outbox")
    outbox.mkdir(exist_ok=True)
    (outbox / f"{email['Message-ID'].strip('<>')}.eml").write_bytes(bytes(email))


def welcome(to: str, number: int) -> str:
    """Send the welcome of customer `number`, unless one is waiting or running. Returns the message id."""
    key = f"welcome-{number}"
    return send_email.options(unique=key).send(to, "welcome", message_id=f"<{key}@example.org>")


if __name__ == "__main__":
    for number, address in enumerate(sys.argv[1:]):
        print(welcome(address, number))
