"""An agent: streams tokens to a browser, waits for an approval for days, survives its worker, is cancelled and resumed.

    export QWORKER_URL=embedded: QWORKER_NAMESPACE=agents
    qworker run examples/agent.py &                         writes and sends
    uvicorn examples.agent:web                              http://127.0.0.1:8000: type a topic, watch, approve

The browser resumes by itself: each event has the id of its entry in the feed, and after a break the browser sends the
last one as `Last-Event-ID`. Neither the page nor the web server keeps anything. A letter that was cancelled is resumed
as another run, which takes over the draft.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass

import msgspec
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from qworker import (
    Handle,
    InvalidNameError,
    InvalidOptionError,
    QWorker,
    Run,
    RunEndedError,
    RunStartedError,
    RunUnknownError,
    SignalGivenError,
    SignalTimeoutError,
    current,
)

app = QWorker("agents")


@dataclass
class Approval:
    """The answer of a person."""

    by: str
    send: bool


async def model(topic: str) -> AsyncIterator[str]:
    """Pretend to be a language model: produce a token at a time."""
    for token in f"A short letter about {topic} .".split():
        await asyncio.sleep(0.01)
        yield token


async def tell(**event: object) -> None:
    """Show something in the browser."""
    context = current()
    assert context is not None
    await context.feed.aappend(event)


async def write(topic: str) -> str:
    """Write a draft, token by token. If the worker dies on the way, the next one starts it again."""
    await tell(draft="begins")
    tokens = []
    async for token in model(topic):
        tokens.append(token)
        await tell(token=token)
    return " ".join(tokens)


async def send(draft: str, approval: Approval) -> str:
    """Send the letter. A real one gives `run.key("send")` to the mail system, which then sends it once."""
    return f"sent for {approval.by}: {draft}"


@app.workflow(queue="agents", result="7d")
async def letter(run: Run, topic: str, draft: str = "") -> str:
    """Write, wait for a person, send. The draft is not written again, however long that takes."""
    if draft:
        await run.step("show", lambda: tell(draft=draft))
    else:
        draft = await run.step(write, topic)
    await run.step("ask", lambda: tell(waits="for an approval"))
    try:
        approval = await run.wait(Approval, timeout="7d")
    except SignalTimeoutError:
        return "no answer"
    if not approval.send:
        return "not sent"
    done = await run.step(send, draft, approval)
    await run.step("tell", lambda: tell(done=done))
    return done


# -- the web ---------------------------------------------------------------------------------------


async def start(request: Request) -> Response:
    """Start a letter once, however often the browser sends this."""
    topic = (await request.body()).decode()
    try:
        await letter.options(id=request.path_params["id"]).astart(topic)
    except RunStartedError as error:
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({"id": request.path_params["id"]}, 202)


async def events(request: Request) -> Response:
    """Stream the feed as Server-Sent Events, after the last one that the browser has."""
    last = request.headers.get("last-event-id", "")
    try:
        stream = server_sent_events(_handle(request), last)
    except InvalidOptionError as error:
        return JSONResponse({"error": str(error)}, 400)
    headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    return StreamingResponse(stream, media_type="text/event-stream", headers=headers)


def server_sent_events(handle: Handle[str], last: str) -> AsyncIterator[str]:
    """Write the entries after `last` as events, and one called `end` when the run has ended."""
    feed = handle.afeed(last)

    async def stream() -> AsyncIterator[str]:
        async for entry in feed:
            yield f"id: {entry.id}\ndata: {json.dumps(entry.value)}\n\n"
        yield "event: end\ndata: {}\n\n"

    return stream()


async def approve(request: Request) -> Response:
    """Give the answer; the first one counts."""
    try:
        approval = msgspec.json.decode(await request.body(), type=Approval)
        await _handle(request).asignal(approval)
    except msgspec.MsgspecError as error:
        return JSONResponse({"error": str(error)}, 400)
    except (RunEndedError, RunUnknownError, SignalGivenError) as error:
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({}, 202)


async def cancel(request: Request) -> Response:
    """Cancel the run, whether it writes or waits."""
    return JSONResponse({"answer": await _handle(request).acancel()})


async def resume(request: Request) -> Response:
    """Continue a cancelled letter with its draft as another run, whose id is the body."""
    cancelled, new_id = _handle(request), (await request.body()).decode()
    status = await cancelled.astatus()
    if status is None or status.state != "cancelled":
        return JSONResponse({"error": f"{cancelled.id} was not cancelled"}, 409)
    steps = {step.name: step.value for step in await cancelled.asteps() or []}
    if "write" not in steps:
        return JSONResponse({"error": "nothing was written; start another letter"}, 409)
    try:
        await letter.options(id=new_id).astart("", json.loads(steps["write"]))
    except (RunStartedError, InvalidNameError) as error:
        return JSONResponse({"error": str(error)}, 409)
    return JSONResponse({"id": new_id}, 202)


def _handle(request: Request) -> Handle[str]:
    return letter.handle(request.path_params["id"])


async def page(request: Request) -> Response:
    """Show the page: `EventSource` reconnects, and sends `Last-Event-ID`, by itself."""
    return HTMLResponse(PAGE)


PAGE = """<!doctype html><title>A letter</title>
<form><input name=topic value="rain"> <button>Write</button></form>
<p id=draft></p>
<button id=yes hidden>Send it</button> <button id=stop hidden>Cancel</button> <button id=again hidden>Resume</button>
<script>
let id = crypto.randomUUID()
const [draft, yes, stop, again] = ["draft", "yes", "stop", "again"].map(name => document.getElementById(name))
const post = (path, body) => fetch(`/letters/${id}${path}`, {method: "POST", body})
const watch = () => {
  stop.hidden = false
  const events = new EventSource(`/letters/${id}/events`)
  events.onmessage = ({data}) => {
    const event = JSON.parse(data)
    if (event.draft) draft.textContent = event.draft == "begins" ? "" : event.draft
    if (event.token) draft.textContent += event.token + " "
    if (event.waits) yes.hidden = false
    if (event.done) draft.textContent = event.done
  }
  events.addEventListener("end", () => { events.close(); yes.hidden = stop.hidden = true })
}
document.forms[0].onsubmit = async submitted => {
  submitted.preventDefault()
  await post("", document.forms[0].topic.value)
  watch()
}
yes.onclick = () => post("/approval", JSON.stringify({by: "you", send: true}))
stop.onclick = async () => { await post("/cancel"); again.hidden = false }
again.onclick = async () => {
  const next = crypto.randomUUID(), resumed = await post("/resume", next)
  again.hidden = true
  if (resumed.ok) { id = next; watch() }
}
</script>
"""


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    """Close what the event loop of the web server has opened."""
    yield
    await app.aclose()


web = Starlette(
    lifespan=lifespan,
    routes=[
        Route("/", page),
        Route("/letters/{id}", start, methods=["POST"]),
        Route("/letters/{id}/events", events),
        Route("/letters/{id}/approval", approve, methods=["POST"]),
        Route("/letters/{id}/cancel", cancel, methods=["POST"]),
        Route("/letters/{id}/resume", resume, methods=["POST"]),
    ],
)
