"""Sums over labels and engines go on although routes, labels and engines come and go."""

from exporter.schema import Scrape, TargetConfig
from tests.bodies import Body, Fed

CHAT = "/v1/chat/completions"


def test_a_route_that_a_restarted_engine_has_not_shown_again_stays_counted():
    """100 completions and 50 chats, then a new process with 3 completions, then 9 and the first chat: 150, 153, 160."""
    fed, body = Fed(), Body().process(1.0)
    fed.scrape(0, body.http(0))
    fed.scrape(2, body.http(100).http(50, route=CHAT))
    found = [(fed.get("http_responses_total", status="2xx"), fed.get("offered_requests_total"))]
    body = Body().process(2.0)
    fed.scrape(4, body.http(3))
    found.append((fed.get("http_responses_total", status="2xx"), fed.get("offered_requests_total")))
    fed.scrape(6, body.http(9).http(1, route=CHAT))
    found.append((fed.get("http_responses_total", status="2xx"), fed.get("offered_requests_total")))

    assert found == [(150, 150), (153, 153), (160, 160)]


def test_errors_of_the_process_before_stay_counted():
    """4 of 5xx; the new process has none yet, and then 1: 4, 4, 5. They are among those offered."""
    fed, body = Fed(), Body().process(1.0)
    fed.scrape(0, body.http(0).http(0, status="5xx"))
    fed.scrape(2, body.http(4, status="5xx"))
    found = [(fed.get("http_responses_total", status="5xx"), fed.get("offered_requests_total"))]
    for at, count in ((4, None), (6, 1)):
        fed.scrape(at, Body().process(2.0).http(0).http(count, status="5xx"))
        found.append((fed.get("http_responses_total", status="5xx"), fed.get("offered_requests_total")))

    assert found == [(4, 4), (4, 4), (5, 5)]


def test_nobody_is_said_to_have_left_when_an_engine_comes_back_under_another_name():
    """150 answered and finished under the old name; the new process has served none."""
    fed, old = Fed(), Body(model_name="old").process(1.0)
    fed.scrape(0, old.http(0))
    fed.scrape(2, old.http(150).finish(times=150))
    for at in (4, 6, 8):
        fed.scrape(at, Body(model_name="new").process(2.0).http(0))

    assert fed.get("abandoned_requests_total") == 0


def test_nobody_is_said_to_have_left_when_one_of_several_engines_goes():
    """50 finished on engine 0 and 100 on engine 1, which is scaled away. Then 7 more, of whom 2 leave."""
    fed, zero, one = Fed(), Body(engine="0").process(), Body(engine="1")
    fed.scrape(0, zero.http(0), one)
    fed.scrape(2, zero.http(150).finish(times=50), one.finish(times=100))
    for at in (4, 6):
        fed.scrape(at, zero)
    gone = fed.get("abandoned_requests_total")
    for at in (8, 10):
        fed.scrape(at, zero.http(157).finish(times=5 if at == 8 else 0))

    assert (gone, fed.get("abandoned_requests_total")) == (0, 2)


def test_a_line_that_is_lost_for_a_scrape_costs_no_response():
    """10, away for a scrape in which 5 come, 5 more: 20."""
    fed, body = Fed(), Body().process()
    fed.scrape(0, body.http(0))
    fed.scrape(2, body.http(10))
    fed.scrape(4, body.http(15).text().replace(b"http_requests_total{", b"{"))
    away = fed.get("http_responses_total", status="2xx")
    fed.scrape(6, body.http(20))

    assert (away, fed.get("http_responses_total", status="2xx")) == (10, 20)


def test_a_route_that_is_dropped_for_want_of_places_stays_counted():
    """50 chats by a process before; 40 scrapes of 20 other routes each drop that series, and the sum stays 50."""
    fed = Fed(TargetConfig(scrape=Scrape(max_series=200)))
    fed.scrape(0, Body().process(1.0).http(0))
    fed.scrape(2, Body().process(1.0).http(0).http(50, route=CHAT))
    for turn in range(2, 42):
        body = Body().process(2.0).http(0)
        for number in range(20):
            body.own("http_requests_total", 1, handler=f"/{turn}/{number}", method="GET", status="4xx")
        fed.scrape(2 * turn, body)

    assert not any(slot.column.labels[:1] == (CHAT,) for slot in fed.pipeline._layout.slots)
    assert fed.get("dropped_series_total") > 600
    assert fed.get("http_responses_total", status="2xx") == 50
    assert fed.get("offered_requests_total") == 50


def test_only_classes_of_status_are_told():
    """vLLM groups them. Whatever else stands there is no label of ours."""
    fed, body = Fed(), Body().process().http(0)
    for at in range(3):
        fed.scrape(2 * at, body.http(at, status=f"{at}-never-again"))

    assert {dict(pairs)["status"] for name, pairs in fed.shown() if name == "http_responses_total"} == {
        *("2xx", "4xx", "5xx")
    }


def test_answers_of_an_engine_that_was_there_for_a_while_are_not_arrivals_of_the_other():
    """Engine 0 alone served 10; engine 1 came, served 1,000 and went; then engine 0 serves 5 more: 15."""
    fed, zero, one = Fed(), Body(engine="0").process().http(0), Body(engine="1")
    fed.scrape(0, zero)
    fed.scrape(2, zero.http(10).first_tokens(0.2, times=10).finish(times=10))
    fed.scrape(4, zero, one)
    fed.scrape(6, zero.http(1010), one.first_tokens(0.2, times=1000).finish(times=1000))
    fed.scrape(8, zero)
    fed.scrape(10, zero.http(1015).first_tokens(0.2, times=5).finish(times=5))

    assert fed.get("arrivals_total", engine="0") == 15


def test_tokens_of_an_engine_that_went_stay_under_the_bill_they_were_made_for():
    """Two engines at $1 and 10 tokens a second each: $100,000 per million, before, when one goes, and after."""
    fed = Fed(TargetConfig(gpu_hour_dollars=3600.0))
    zero, one, prices = Body(engine="0").process(), Body(engine="1"), []
    for at in range(0, 200, 2):
        fed.scrape(at, zero, *([one] if at < 120 else []))
        zero.tokens(generated=20, prompt=20)
        one.tokens(generated=20, prompt=20)
        prices.append(fed.get("cost_dollars_per_million_tokens", basis="output", window="1m"))

    assert {round(price) for price in prices[30:]} == {100_000}


def test_what_no_engine_says_is_no_zero():
    """Without request_success nothing is known of requests per dollar, nor of who left: 5 were answered."""
    fed = Fed(TargetConfig(gpu_hour_dollars=3600.0))
    body = Body().process().http(0).drop("vllm:request_success_total")
    for at in range(0, 62, 2):
        fed.scrape(at, body)
    fed.scrape(62, body.http(5))

    assert fed.get("requests_per_dollar") is None
    assert fed.get("abandoned_requests_total") is None
    assert fed.get("offered_requests_total") == 5


def test_nobody_is_said_to_have_left_while_the_lines_of_finished_requests_are_lost():
    """10 answered and finished, then for three scrapes not a line of request_success: not known, then still nobody."""
    fed, body = Fed(), Body().process()
    fed.scrape(0, body.http(0))
    fed.scrape(2, body.http(10).finish(times=10))
    for at in (4, 6, 8):
        fed.scrape(at, body.text().replace(b"vllm:request_success_total", b"vllm:renamed_total"))
    lost = fed.get("abandoned_requests_total")
    for at in (10, 12):
        fed.scrape(at, body)

    assert (lost, fed.get("abandoned_requests_total")) == (None, 0)


def test_a_weighted_price_needs_every_engine_to_say_what_it_computed():
    """Engine 1 tells neither sources nor hits: its prompts are not all cached, so no token has a weighted price."""
    fed = Fed(TargetConfig(gpu_hour_dollars=3600.0))
    zero, one = Body(engine="0").process(), Body(engine="1").drop("vllm:prefix_cache_hits_total")
    for at in range(0, 62, 2):
        fed.scrape(at, zero.tokens(generated=10, prompt=10), one.tokens(generated=10, prompt=10))

    assert fed.get("cost_dollars_per_million_tokens", basis="weighted") is None
    # $2 a second over 10 output tokens a second, and over 20 of both kinds
    assert fed.get("cost_dollars_per_million_tokens", basis="output") == 200_000
    assert fed.get("cost_dollars_per_million_tokens", basis="all") == 100_000
