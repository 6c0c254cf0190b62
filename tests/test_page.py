"""The page in a real browser, over simulated engines that are made to be what it should say they are."""

import asyncio
import contextlib
import itertools
import re
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlencode

import pytest
import pytest_asyncio
from axe_playwright_python.async_playwright import Axe
from playwright.async_api import Browser, Page, Route, async_playwright

from exporter.lab.profiles import Profile
from exporter.recent import STEP_SECONDS
from exporter.signals.verdict import Kind
from tests.programs import system
from tests.scenes import STEADY, Scene, scene

pytestmark = pytest.mark.asyncio(loop_scope="module")

MARKUP = "<img src=x onerror=alert(1)>\"'&"
ENGINES: dict[str, Profile | None] = {
    "fine": STEADY,
    "queueing": replace(STEADY, max_num_seqs=4),
    "slow": replace(STEADY, weight_read_seconds=0.3),
    "left": replace(STEADY, max_num_seqs=2),
    "stuck": replace(STEADY, weight_read_seconds=0.01),
    "blind": STEADY,
    "asleep": STEADY,
    "gone": STEADY,
    "nobody": None,
    MARKUP: STEADY,
}
VERDICTS = {
    "fine": "fine",
    "queueing": "queueing",
    "slow": "batch pressure",
    "left": "clients are leaving",
    "stuck": "stalled",
    "blind": "blind",
    "asleep": "asleep",
    "gone": "lost",
    "nobody": "loading",
    MARKUP: "fine",
}
WATCH_SHIFTS = """
window.shifts = 0;
new PerformanceObserver((list) => {
  for (const entry of list.getEntries()) if (!entry.hadRecentInput) window.shifts += entry.value;
}).observe({ type: "layout-shift", buffered: true });
"""


@dataclass
class Opened:
    """A page, and what it complained of and asked for."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)

    async def kinds(self) -> dict[str, str]:
        """By target, in the order of the list."""
        rows = self.page.locator("#list li")
        keys = await rows.evaluate_all("rows => rows.map((row) => new URLSearchParams(row.dataset.key).get('target'))")
        kinds = await rows.locator(".kind").all_inner_texts()
        return dict(zip(keys, (kind.split(" · ")[0] for kind in kinds), strict=True))

    async def until(self, script: str, argument: Any = None) -> None:
        """Wait for a condition; the browser's own waiting needs eval, which the page's policy forbids."""
        async with asyncio.timeout(15):
            while not await self.page.evaluate(script, argument):  # noqa: ASYNC110 - seen from outside only
                await asyncio.sleep(0.05)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=system("chromium"), args=["--no-sandbox"])
        yield chromium
        await chromium.close()


@contextlib.asynccontextmanager
async def opened(browser: Browser, url: str, **options: Any) -> AsyncIterator[Opened]:
    """A page that is live, and at the end has complained of nothing and asked nobody else."""
    context = await browser.new_context(**({"viewport": {"width": 1360, "height": 1000}} | options))
    found = Opened(await context.new_page())
    found.page.on("console", lambda message: found.complaints.append(message.text))
    found.page.on("pageerror", lambda error: found.complaints.append(str(error)))
    found.page.on("dialog", lambda dialog: found.complaints.append(dialog.message))
    found.page.on("request", lambda request: found.asked.append(request.url))
    await found.page.add_init_script(WATCH_SHIFTS)
    await found.page.goto(url)
    await found.page.wait_for_selector("#columns:not([hidden])")
    try:
        yield found
        assert found.complaints == []
        host = url.split("/")[2]
        assert {address.split("/")[2] for address in found.asked} == {host}
    finally:
        await context.close()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def scenery() -> AsyncIterator[Scene]:
    """Engines, each brought into another state, and one with an awkward name."""
    async with scene(ENGINES, {MARKUP: MARKUP}, stall_after_seconds=2.0) as made:
        made.load("fine", 3)
        made.load("queueing", 60)
        made.load("slow", 4)
        made.load("left", 20, patience=0.7, max_tokens=200)
        made.load("stuck", 6, max_tokens=400)
        for name in ("blind", "asleep", "gone"):
            made.load(name, 1)
        made.load(MARKUP, 1, model=MARKUP)
        seen = ENGINES.keys() - {"nobody"}
        await made.until(lambda: {one.target.label for one in made.sidecar.readings.all() if one.engine} == seen)
        await made.until(lambda: made.steps("stuck") > 120)
        made.simulators["blind"].faults.set("lose", {"series": "vllm:num_preemptions"})
        made.simulators["asleep"].faults.set("sleep", {})
        made.simulators["stuck"].faults.set("hang", {})
        await made.simulators["gone"].listener.close()
        await made.until(lambda: made.kinds() == VERDICTS)
        yield made


async def test_every_verdict_is_reached_and_listed_worst_first(scenery: Scene, browser: Browser) -> None:
    """Queue, slow steps, clients without patience, a hang, a lost series, sleep, a closed port, nobody: as told."""
    async with opened(browser, scenery.url) as found:
        await found.until("document.querySelectorAll('#list li').length === 10")
        listed = await found.kinds()
        assert listed == VERDICTS
        ranks = [Kind(kind).rank for kind in listed.values()]
        assert ranks == sorted(ranks)
        assert await found.page.locator("#verdict h2").inner_text() == next(iter(listed.values()))
        for target, kind in VERDICTS.items():
            await found.page.locator(f'#list li[data-key^="{urlencode({"target": target})}&"] button').click()
            await found.until("kind => document.querySelector('#verdict h2').textContent === kind", kind)
            assert target in await found.page.locator("#verdict .about").inner_text()
            assert await found.page.locator("#verdict .sentence").inner_text()


async def test_alerts_that_would_fire_lead_to_their_runbooks(scenery: Scene, browser: Browser) -> None:
    async with opened(browser, f"{scenery.url}/#target=blind") as found:
        link = found.page.get_by_role("link", name="VLLMSidecarBlind")
        assert (await link.get_attribute("href") or "").endswith("/alerts/runbooks/VLLMSidecarBlind.md")


async def test_a_link_stays_while_somebody_reaches_for_it(browser: Browser) -> None:
    """What it says changes with every scrape; the focus, and a press of a button that takes a moment, need the link."""
    numbers = itertools.count(1)

    async def changing(route: Route) -> None:
        answer = await route.fetch()
        state = await answer.json()
        number = next(numbers)
        alerts = ["VLLMEngineStalled"] * (number > 2) + ["VLLMPreemptions", "VLLMSidecarBlind"]
        told = {"lasting": "5m", "summary": f"number {number}"}
        state["selected"]["conditions"] = [{"alert": name, "runbook_url": f"#{name}", **told} for name in alerts]
        await route.fulfill(response=answer, json=state)

    async with scene({"nobody": None}) as made, opened(browser, made.url) as found:
        await found.page.route("**/page/state*", changing)
        said = "number => document.querySelector('#firing ul').textContent.includes(`number ${number}`)"
        await found.until(said, 1)
        link = found.page.get_by_role("link", name="VLLMPreemptions")
        await link.focus()
        await found.until(said, 4)
        assert await link.evaluate("link => link === document.activeElement")
        texts = await found.page.locator("#firing li").all_inner_texts()
        assert [text.partition(":")[0] for text in texts] == [
            "VLLMEngineStalled",
            "VLLMPreemptions",
            "VLLMSidecarBlind",
        ]
        await found.page.unroute_all(behavior="wait")
        await found.until("document.querySelector('#firing ul').textContent.startsWith('VLLMEngineLost: is loading.')")


async def test_an_unknown_number_says_why(scenery: Scene, browser: Browser) -> None:
    """Nothing decodes on an engine that sleeps; without settings for speculation there is no advice on it."""
    async with opened(browser, f"{scenery.url}/#target=fine") as found:
        text = await found.page.locator("[data-metric=speculation_advised]").inner_text()
        assert text == "off, and speculation.alpha, gamma not set"
        await found.page.locator('#list li[data-key^="target=asleep&"] button').click()
        await found.until("document.querySelector('#verdict h2').textContent === 'asleep'")
        # Its last steps leave the window of 15 s by and by.
        assert "asleep" in await found.page.title()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_accessible_by_axe(scenery: Scene, browser: Browser, scheme: str) -> None:
    """Names, roles, contrast, structure: no violation of any of its rules."""
    async with opened(browser, f"{scenery.url}/#target=queueing", color_scheme=scheme) as found:
        await found.until("document.querySelectorAll('#list li').length === 10")
        results = await Axe().run(found.page)
        assert [each["id"] for each in results.response["violations"]] == []
        assert len(results.response["passes"]) > 15


async def test_keyboard_phone_width_and_screen_reader(scenery: Scene, browser: Browser) -> None:
    """Everything by Tab and Enter; nothing wider than a phone; a verdict is spoken when it is another one."""
    async with opened(browser, scenery.url, viewport={"width": 360, "height": 740}) as found:
        page = found.page
        await found.until("document.querySelectorAll('#list li').length === 10")
        assert await page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth")
        await page.evaluate(
            "window.spoken = 0; new MutationObserver(() => window.spoken++).observe("
            "document.querySelector('#announcement'), {childList: true})"
        )
        for _ in range(6):  # the skip link, three links in the header, the first engine, the second
            await page.keyboard.press("Tab")
        second = await page.locator("#list li").nth(1).get_attribute("data-key")
        assert await page.evaluate("document.activeElement.parentElement.dataset.key") == second
        await page.keyboard.press("Enter")
        await found.until("document.querySelectorAll('#list li')[1].firstChild.getAttribute('aria-current') === 'true'")
        assert await page.evaluate("document.activeElement.parentElement.dataset.key") == second
        kind = (await page.locator("#list li").nth(1).locator(".kind").inner_text()).split(" · ")[0]
        assert kind in await page.locator("#announcement").inner_text()
        assert await page.evaluate("window.spoken") == 1


async def test_nothing_shifts_while_numbers_change(scenery: Scene, browser: Browser) -> None:
    """From the first paint on, over several answers; the browser itself keeps the score, 0 is still."""
    async with opened(browser, f"{scenery.url}/#target=fine") as found:
        for _ in range(4):
            async with found.page.expect_response("**/page/state*"):
                pass
        assert await found.page.evaluate("window.shifts") < 0.001


async def test_ten_minutes_are_drawn(scenery: Scene, browser: Browser) -> None:
    """120 points, from the left edge to the right one."""
    label = "fine"
    [target] = [each for each in scenery.sidecar.targets if each.config.label == label]
    for number in range(120, 0, -1):
        scenery.sidecar.recent.add(target.view(), time.time() - number * STEP_SECONDS)
    async with opened(browser, f"{scenery.url}/#target={label}") as found:
        chart = found.page.locator(".panel").nth(4).locator("path.one")
        await found.until("document.querySelectorAll('path.one')[4].getAttribute('d').length > 1000")
        drawn = (await chart.get_attribute("d")) or ""
        across = [float(each.split(" ")[0]) for each in drawn.replace("M", "L").split("L")[1:]]
        assert len(across) >= 118
        assert across[0] < 15
        assert across[-1] > 585
        assert "now" in (await found.page.locator(".panel svg").nth(4).get_attribute("aria-label") or "")


async def test_history_that_was_asked_for_twice_is_drawn_once(browser: Browser) -> None:
    """As by who clicks while an answer is on its way. Two points, to which the line would go back from its end."""
    now, asked = time.time(), itertools.count(1)
    both = asyncio.Event()

    async def slow(route: Route) -> None:
        if next(asked) == 2:
            both.set()
        await both.wait()
        answer = await route.fetch()
        told = await answer.json()
        if "since=0" in route.request.url:
            series = told["engines"][0]["series"]
            series |= {name: [None, None] for name in series}
            series |= {"unix_seconds": [now - 10, now - 5], "kv_usage_ratio": [0.1, 0.2]}
        await route.fulfill(response=answer, json=told)

    async with scene({"nobody": None}) as made, opened(browser, made.url) as found:
        await found.page.route("**/api/v1/history*", slow)
        async with found.page.expect_request("**/api/v1/history*"):
            pass
        await found.page.evaluate("window.dispatchEvent(new HashChangeEvent('hashchange'))")
        async with asyncio.timeout(15):
            await both.wait()
        drawn = "document.querySelectorAll('path.one')[4].getAttribute('d')"
        await found.until(f"({drawn} ?? '') !== ''")
        for _ in range(2):
            async with found.page.expect_response("**/page/state*"):
                pass
        assert len(re.findall("[ML]", await found.page.evaluate(drawn))) == 2
        await found.page.unroute_all(behavior="wait")


async def test_the_chart_goes_on_when_the_clock_is_set_back(
    scenery: Scene, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last point read is an hour ahead, and then it is not: what is newer than now is let go."""
    ahead = "/[ML]4\\d\\d\\d\\./"  # ten minutes are 600 wide: an hour ahead is at 4,200
    drawn = "document.querySelectorAll('path.one')[4].getAttribute('d')"
    async with opened(browser, f"{scenery.url}/#target=fine") as found:
        with monkeypatch.context() as patched:
            clock = SimpleNamespace(time=lambda: time.time() + 3600, monotonic=time.monotonic)
            patched.setattr("exporter.app.time", clock)
            await found.until(f"{ahead}.test({drawn})")
        await found.until(f"{drawn} && !{ahead}.test({drawn})")


async def test_names_are_text_whatever_they_hold(scenery: Scene, browser: Browser) -> None:
    """Markup in model_name and in the target's name is shown as it is, and makes no element."""
    key = urlencode({"target": MARKUP, "model_name": MARKUP, "engine": "0"})
    async with opened(browser, f"{scenery.url}/#{key}") as found:
        await found.until("document.querySelectorAll('#list li').length === 10")
        assert f"{MARKUP} · engine 0 · {MARKUP}" in await found.page.locator("#list .name").all_inner_texts()
        assert f"{MARKUP} · engine 0 · {MARKUP}" in await found.page.locator("#verdict .about").inner_text()
        assert await found.page.locator("img").count() == 0


async def test_a_lost_engine_is_lost_within_two_intervals(scenery: Scene, browser: Browser) -> None:
    """Counted in scrapes; the page says so without being loaded again, and says it of no other."""
    async with opened(browser, scenery.url) as found:
        [target] = [each for each in scenery.sidecar.targets if each.config.label == MARKUP]
        await scenery.simulators[MARKUP].listener.close()
        before = target.version
        await scenery.until(lambda: scenery.kinds()[MARKUP] == "lost")
        assert target.version - before <= 2
        kinds = "[...document.querySelectorAll('#list .kind')].map((one) => one.textContent.split(' ')[0])"
        await found.until(f"{kinds}.filter((kind) => kind === 'lost').length === 2")
        assert await found.kinds() == VERDICTS | {MARKUP: "lost"}


async def test_numbers_are_those_of_the_api_and_of_metrics(scenery: Scene, browser: Browser) -> None:
    """With scraping held still, at one instant: what the page shows is what both others say."""
    async with opened(browser, f"{scenery.url}/#target=fine") as found:
        await scenery.sidecar.targets.stop()
        for _ in range(2):
            async with found.page.expect_response("**/page/state*"):
                pass
        shown = await found.page.evaluate(
            "Object.fromEntries([...document.querySelectorAll('[data-metric][data-value]')]"
            ".map((one) => [one.dataset.metric, Number(one.dataset.value)]))"
        )
        [target] = (await scenery.http.get(f"{scenery.url}/api/v1/signals?target=fine")).json()["targets"]
        metrics = (await scenery.http.get(f"{scenery.url}/metrics")).text
    exposed = {
        line.rpartition(" ")[0].removeprefix("vllm_sidecar_"): float(line.rpartition(" ")[2])
        for line in metrics.splitlines()
        if line.startswith("vllm_sidecar_") and 'target="fine"' in line
    }
    labels = '{engine="0",model_name="simulated",target="fine"}'
    plain = [name for name in shown if isinstance(target["engines"][0].get(name), float)]
    assert {"decode_batch_size", "running_requests", "kv_usage_ratio", "predicted_ttft_seconds"} <= set(plain)
    for name in plain:
        assert shown[name] == target["engines"][0][name] == exposed[name + labels], name
