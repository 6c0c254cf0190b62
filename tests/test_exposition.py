"""Reading an exposition: the whole grammar, exact names, one bad line costs one line, never an exception."""

import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import ALLOWUTF8
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from exporter import exposition
from exporter.exposition import Failure, Parser, Reason
from exporter.sample_line import parse_line
from exporter.snapshot import TARGET, Engine, Layout, Snapshot
from exporter.upstream import Part
from tests.bodies import Body

ZERO = Engine("m", "0")


def read(body, *, openmetrics=False, parser=None, **options):
    """The parser's columns by owner, and its bad lines; or the failure."""
    layout = Layout() if parser is None else parser._layout
    parser = Parser(layout, **options) if parser is None else parser
    body = body if isinstance(body, bytes) else body.encode()
    result = parser.parse(body, openmetrics=openmetrics)
    return result if isinstance(result, Failure) else (columns(layout, result), result.bad_lines)


def columns(layout, snapshot: Snapshot):
    """Owner and column to value, of what the snapshot knows."""
    known = {slot: snapshot.value(position) for position, slot in enumerate(layout.slots)}
    return {(slot.owner, *slot.column): value for slot, value in known.items() if value is not None}


def value(body, series, *labels, part=Part.VALUE, owner=ZERO, **options):
    found, _ = read(body, **options)
    return found.get((owner, series, part, labels))


# One line


@pytest.mark.parametrize(
    ("line", "name", "labels", "number"),
    [
        ("x 1", "x", {}, 1),
        ("x{} 1", "x", {}, 1),
        ('x{a="{x}",b="y,z",c="F:\\\\",d="q\\"r"} 1', "x", {"a": "{x}", "b": "y,z", "c": "F:\\", "d": 'q"r'}, 1),
        ('x{a="two\\nlines"} 2', "x", {"a": "two\nlines"}, 2),
        ('x{a="a \\\\n is no line feed"} 2', "x", {"a": "a \\n is no line feed"}, 2),
        ('x{ a = "1" , b = "2" , } 3', "x", {"a": "1", "b": "2"}, 3),
        ("\tx\t4\t", "x", {}, 4),
        ("x 5 1785932718601", "x", {}, 5),
        ("x 1.9392065536e+010 -1", "x", {}, 19_392_065_536),
        ("x 1e+06", "x", {}, 1_000_000),
        ("x +Inf", "x", {}, math.inf),
        ("x -Inf", "x", {}, -math.inf),
        ('x_total 208.0 # {trace_id="a"} 7.0 1.7e9', "x_total", {}, 208),
        ('x_bucket{le="1.0"} 6 1700000000.1 # {trace_id="} 9"} 7.0', "x_bucket", {"le": "1.0"}, 6),
        ('{"vllm:x",a="b"} 8', "vllm:x", {"a": "b"}, 8),
        ('x{"a.label"="b"} 9', "x", {"a.label": "b"}, 9),
        ('x{a="模型 名-\u03b1"} 10', "x", {"a": "模型 名-\u03b1"}, 10),
        ('x{a=""} 11\r', "x", {"a": ""}, 11),
    ],
)
def test_a_sample_line(line, name, labels, number):
    """Braces, commas, quotes, backslashes, blanks; a timestamp or an exemplar never takes the value's place."""
    assert parse_line(line)[:3] == (name, labels, number)


def test_nan_is_a_value():
    """It is up to the reader what an engine's NaN means."""
    assert math.isnan(parse_line("x NaN").value)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "x",
        "x{} ",
        'x{a="1} 1',
        'x{a="1"',
        "x{a=1} 1",
        'x{a="1" b="2"} 1',
        'x{a="1",a="2"} 1',
        'x{,a="1"} 1',
        "x{a} 1",
        "{} 1",
        "1x 1",
        "x 1_000",
        "x 0x10",
        "x \u0661",
        "x 1 2 3",
        "x 1 tomorrow",
        "x--1",
        "<html> 1",
    ],
)
def test_not_a_sample_line(line):
    """Refused, not guessed at."""
    with pytest.raises(ValueError):
        parse_line(line)


# Bodies


def test_waiting_is_not_waiting_by_reason():
    """5 wait: 4 for capacity, 1 deferred. The queue reads 5, not 10."""
    body = (
        'vllm:num_requests_waiting{engine="0",model_name="m"} 5\n'
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 4\n'
        'vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="deferred"} 1\n'
    )

    assert value(body, "waiting") == 5
    assert value(body, "waiting_by_reason", "capacity") == 4
    assert value(body, "waiting_by_reason", "deferred") == 1


OLD = 'vllm:gpu_cache_usage_perc{engine="0",model_name="m"} 0.25\n'
NEW = 'vllm:kv_cache_usage_perc{engine="0",model_name="m"} 0.75\n'
RUNNING = 'vllm:num_requests_running{engine="0",model_name="m"} 1\n'


@pytest.mark.parametrize(
    ("body", "usage"),
    [(OLD, 0.25), (NEW, 0.75), (OLD + NEW, 0.75), (NEW + OLD, 0.75), (RUNNING, None)],
    ids=["old", "new", "old then new", "new then old", "neither"],
)
def test_a_renamed_gauge_is_read_once_under_either_name(body, usage):
    """0.9.2 to 0.10.2 expose both; where both are there the newer is taken, in whatever order, and none is bad."""
    found, bad_lines = read(body)

    assert found.get((ZERO, "kv_usage", Part.VALUE, ())) == usage
    assert bad_lines == 0


def test_a_name_that_changes_between_scrapes_is_followed():
    """An engine rolled forward, then back: each scrape reads the name that is there."""
    layout = Layout()
    parser = Parser(layout)
    usages = [
        columns(layout, parser.parse(body.encode()))[ZERO, "kv_usage", Part.VALUE, ()]
        for body in (OLD, OLD + NEW, NEW, OLD, NEW + OLD, OLD)
    ]

    assert usages == [0.25, 0.75, 0.75, 0.25, 0.75, 0.25]


def test_an_engine_that_comes_later_with_both_names_is_read_right_at_once():
    """The newer name outranks the older for each engine, whichever engine taught us that both exist."""
    both = OLD + NEW
    other = both.replace('engine="0"', 'engine="1"')
    parser = Parser(Layout())

    for body in (both, both + other, both, other, RUNNING + other + both):
        assert read(body, parser=parser) == read(body)
        assert read(body, parser=parser)[1] == 0


def test_old_and_new_latency_names_are_one_histogram():
    """0.10.2 to 0.11.2 expose the same data twice: 5 gaps, not 10. On V0, without engine, it is another thing."""
    old = 'vllm:time_per_output_token_seconds_count{engine="0",model_name="m"} 5\n'
    new = old.replace("time_per_output_token", "inter_token_latency")
    v0 = 'vllm:time_per_output_token_seconds_count{model_name="m"} 7\n' + RUNNING

    assert value(old, "itl", part=Part.COUNT) == 5
    assert value(old + new, "itl", part=Part.COUNT) == 5
    assert value(v0, "itl", part=Part.COUNT, owner=Engine("m", "")) is None


@pytest.mark.parametrize("prefix", ["ray_vllm:", "ray_vllm_", "kserve_vllm:"])
def test_other_prefixes_are_the_same_series(prefix):
    """Ray Serve and KServe rename; the meaning is the same."""
    assert value(RUNNING.replace("vllm:", prefix), "running") == 1


def test_created_series_have_no_effect():
    """A unix time near 1.8e9 is not a number of tokens."""
    body = (
        'vllm:generation_tokens_total{engine="0",model_name="m"} 12\n'
        'vllm:generation_tokens_created{engine="0",model_name="m"} 1.78e+09\n'
    )

    assert read(body) == ({(ZERO, "generation_tokens", Part.VALUE, ()): 12}, 0)


def test_several_engines_and_models_stay_apart():
    """Nothing is 'first one wins' or 'last one wins'."""
    body = "".join(
        f'vllm:num_requests_running{{engine="{engine}",model_name="{model}"}} {running}\n'
        for engine, model, running in [("0", "a", 10), ("1", "a", 20), ("0", "b", 30)]
    )

    assert value(body, "running", owner=Engine("a", "0")) == 10
    assert value(body, "running", owner=Engine("a", "1")) == 20
    assert value(body, "running", owner=Engine("b", "0")) == 30


def test_the_engine_filter_compares_whole_values():
    """Of engines 1, 10 and 11 the filter ``1`` keeps 1."""
    body = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="m"}} {n}\n' for n in (1, 10, 11))

    assert read(body, engines=frozenset({"1"})) == ({(Engine("m", "1"), "running", Part.VALUE, ()): 1}, 0)


def test_a_filter_that_matches_nothing_says_so():
    """Not zeros, and not 'up' because the process told its start time."""
    body = 'vllm:num_requests_running{model="m",version="1"} 3\nprocess_start_time_seconds 1\n'

    assert read(body)[0][Engine("m", ""), "running", Part.VALUE, ()] == 3
    assert read(body, engines=frozenset({"0"})) == Failure(Reason.NO_SERIES, "no series match engine=0")


def test_target_series_belong_to_the_target():
    """They carry no engine, and an engine filter does not concern them."""
    body = RUNNING + (
        'vllm:admission_rejections_total{model_name="m",reason="max_num_queued_reqs"} 4\n'
        'http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 9\n'
        "process_start_time_seconds 1.7e+09\n"
    )
    found, _ = read(body, engines=frozenset({"0"}))

    assert found[TARGET, "rejections", Part.VALUE, ("m", "max_num_queued_reqs")] == 4
    assert found[TARGET, "http_requests", Part.VALUE, ("/v1/completions", "POST", "2xx")] == 9
    assert found[TARGET, "process_start", Part.VALUE, ()] == 1.7e9


def test_edges_are_one_bucket_in_every_spelling():
    """``1``, ``1.0`` and ``1e0`` end the same bucket; a bucket without an edge is no bucket."""
    name = "vllm:time_to_first_token_seconds_bucket"
    spelled = [f'{name}{{engine="0",le="{le}",model_name="m"}} 3\n' for le in ("1", "1.0", "1e0")]

    assert [value(line, "ttft", "1.0", part=Part.BUCKET) for line in spelled] == [3, 3, 3]
    assert read(RUNNING + f'{name}{{engine="0",model_name="m"}} 3\n{name}{{le="NaN"}} 1\n')[1] == 2


def test_a_series_twice_keeps_the_first_and_counts_a_bad_line():
    """Neither summed nor overwritten."""
    found, bad_lines = read(RUNNING + RUNNING.replace(" 1\n", " 2\n"))

    assert found[ZERO, "running", Part.VALUE, ()] == 1
    assert bad_lines == 1


def test_a_bad_line_costs_that_line():
    """And is counted."""
    body = RUNNING + 'vllm:num_requests_waiting{engine="0 7\n\xff\xfe 1\nvllm:kv 1 2 3\n' + NEW
    found, bad_lines = read(body.encode("latin-1"))

    assert bad_lines == 3
    assert found == {(ZERO, "running", Part.VALUE, ()): 1, (ZERO, "kv_usage", Part.VALUE, ()): 0.75}


@pytest.mark.parametrize(
    ("body", "openmetrics", "reason"),
    [
        (b"", False, Reason.EMPTY),
        (b" \n\n", False, Reason.EMPTY),
        (RUNNING[:-3].encode(), False, Reason.PARSE),
        (RUNNING.encode(), True, Reason.PARSE),
        (b"<html><body>502 Bad Gateway</body></html>\n", False, Reason.PARSE),
        (b"\x00\x01\x02\n", False, Reason.PARSE),
        (b"# EOF\n", True, Reason.NO_SERIES),
        (b"up 1\n", False, Reason.NO_SERIES),
        (b"process_start_time_seconds 1.7e+09\n", False, Reason.NO_SERIES),
    ],
    ids=["nothing", "blank", "cut in a line", "no EOF", "html", "binary", "only EOF", "not vLLM", "no engine"],
)
def test_a_body_that_cannot_be_used_is_a_failure_as_a_whole(body, openmetrics, reason):
    """With the reason that is counted; never half of it."""
    assert read(body, openmetrics=openmetrics).reason is reason


def test_openmetrics_of_the_rust_frontend():
    """Types without ``_total``, labels in declaration order, exemplars, ``# EOF``."""
    body = (
        "# TYPE vllm:generation_tokens counter\n"
        'vllm:generation_tokens_total{model_name="m",engine="0"} 208.0 # {trace_id="a"} 7.0 1.7e9\n'
        "# EOF\n"
    )

    assert value(body, "generation_tokens", openmetrics=True) == 208


def test_too_many_series_are_refused_and_counted_not_cut():
    """The limit is on series of ours: a million of others cost nothing but reading."""
    ours = "".join(f'vllm:num_requests_running{{engine="{n}",model_name="m"}} 1\n' for n in range(12))
    others = "".join(f'something_else{{n="{n}"}} 1\n' for n in range(1000))

    assert read(ours + others, max_series=12)[1] == 0
    assert read(ours, max_series=11) == Failure(Reason.TOO_LARGE, "more than 11 series of ours")


def test_what_is_remembered_stays_bounded():
    """An engine lists another mix of adapters at each scrape, for ever: only the lines of the last are remembered."""
    parser = Parser(Layout())
    for turn in range(2000):
        adapters = ",".join(f"a{(turn * step) % 50}" for step in (1, 3, 7, 11))
        parser.parse((RUNNING + f'vllm:lora_requests_info{{running_lora_adapters="{turn},{adapters}"}} 1\n').encode())

    assert len(parser._known) == 2
    assert len(parser._layout.slots) == 1


# Whatever comes

LABEL = st.text(max_size=12)
NUMBER = st.floats(width=64)
ENGINES = st.lists(st.tuples(LABEL, st.text("0123456789", min_size=1, max_size=3)), min_size=1, max_size=3, unique=True)


def same(one, other):
    return one == other or (math.isnan(one) and math.isnan(other))


class Rendered:
    """What prometheus_client makes of engines with these numbers, and what we have to read out of it."""

    def __init__(self, numbers):
        self.numbers = numbers

    def collect(self):
        names = ["model_name", "engine"]
        running = GaugeMetricFamily("vllm:num_requests_running", "Text with \\ and \n in it.", labels=names)
        tokens = CounterMetricFamily("vllm:generation_tokens", "Counted.", labels=names)
        finished = CounterMetricFamily("vllm:request_success", "Counted.", labels=[*names, "finished_reason"])
        ttft = HistogramMetricFamily("vllm:time_to_first_token_seconds", "Seconds.", labels=names)
        for owner, (gauge, counter, reason, total) in self.numbers.items():
            running.add_metric(owner, gauge)
            tokens.add_metric(owner, counter)
            finished.add_metric([*owner, reason], 3.0)
            ttft.add_metric(owner, [("0.1", 1.0), ("+Inf", 2.0)], total)
        return [running, tokens, finished, ttft]

    def expected(self):
        found = {}
        for owner, (gauge, counter, reason, total) in self.numbers.items():
            engine = Engine(*owner)
            found[engine, "running", Part.VALUE, ()] = gauge
            found[engine, "generation_tokens", Part.VALUE, ()] = counter
            found[engine, "finished", Part.VALUE, (reason,)] = 3.0
            found[engine, "ttft", Part.BUCKET, ("0.1",)] = 1.0
            found[engine, "ttft", Part.BUCKET, ("+Inf",)] = 2.0
            found[engine, "ttft", Part.COUNT, ()] = 2.0
            found[engine, "ttft", Part.SUM, ()] = total
        return found

    def body(self, *, openmetrics):
        registry = CollectorRegistry()
        registry.register(self)
        # Without escaping=allow-utf-8 it would write vllm_… for vllm:…, which is why we do not ask for OpenMetrics.
        return generate_openmetrics(registry, ALLOWUTF8) if openmetrics else generate_latest(registry)


@st.composite
def sequences(draw):
    """The same engines with other numbers each time, and now and then one more or one less."""
    engines = draw(ENGINES)
    turns = draw(st.integers(1, 3))
    return [
        Rendered(
            {
                owner: (draw(NUMBER), draw(NUMBER), draw(LABEL), draw(NUMBER))
                for owner in (engines if draw(st.booleans()) else engines[:1])
            }
        )
        for _ in range(turns)
    ]


@given(sequences(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_what_prometheus_client_renders_we_read_back(turns, openmetrics):
    """Any label values, any floats, both formats, and after other bodies: the fast path reads what a fresh one does."""
    parser = Parser(Layout())
    for rendered in turns:
        body = rendered.body(openmetrics=openmetrics)
        for found, bad_lines in (
            read(body, openmetrics=openmetrics, parser=parser),
            read(body, openmetrics=openmetrics),
        ):
            expected = rendered.expected()
            assert bad_lines == 0
            assert found.keys() == expected.keys()
            assert all(same(found[key], number) for key, number in expected.items())


SAMPLES = [RUNNING, NEW, OLD, OLD.replace('"0"', '"1"'), 'vllm:num_requests_running{model_name="m",engine="0"} 4\n']
CHARACTERS = [
    b" ",
    b"{",
    b"}",
    b'"',
    b",",
    b"\\",
    b"\n",
    b"\r",
    b"\t",
    b"\v",
    b"\f",
    b"_",
    b"=",
    b"#",
    b"1",
    b"\xff",
    b"",
]
WORDS = [b"NaN", b" 17", b"x 1", b"x 5#y", b"# x", b"  #", b'x{a="b c"} 1', b'vllm:num_requests_running{engine="0"} ']
PIECES = st.sampled_from([*(line.encode()[:-1] for line in SAMPLES), *CHARACTERS, *WORDS])
GARBAGE = st.lists(PIECES | st.binary(max_size=4), max_size=14).map(b"".join)
LINES = st.lists(st.lists(PIECES, max_size=4).map(b"".join), max_size=8).map(b"\n".join)


@given(st.lists(st.one_of(GARBAGE, LINES).map(lambda body: body + b"\n"), min_size=1, max_size=4))
@example([b"vllm:num_requests_running 1\n", b"vllm:num_requests_running 1\x0c\n"])
@example([b"vllm:num_requests_running 1\n", b"vllm:num_requests_running 1#x\n"])
@example([b"vllm:num_requests_running 1\n  #\n", b"vllm:num_requests_running 1\n  5\n"])
@settings(max_examples=500, deadline=None)
def test_no_bytes_are_too_bad_and_what_was_read_before_changes_nothing(bodies):
    """No exception; and after any other bodies a parser reads, refuses and counts as a fresh one does."""
    warm = Parser(Layout())
    for body in bodies:
        fresh = read(body)
        found = read(body, parser=warm)
        if isinstance(fresh, Failure):
            assert found == fresh
            continue
        assert found[1] == fresh[1]
        assert found[0].keys() == fresh[0].keys()
        assert all(same(found[0][key], number) for key, number in fresh[0].items())


ALIASES = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc", "ray_vllm:kv_cache_usage_perc")
LINE = st.builds(
    "{}{}{}{}{}".format,
    st.sampled_from((*ALIASES, "vllm:num_requests_running", "vllm:generation_tokens_total", "http_x", "# HELP x")),
    st.sampled_from(
        ("", '{engine="0",model_name="m"}', '{model_name="m",engine="0"}', '{engine="1",model_name="a b"}')
    ),
    st.sampled_from((" ", " ", " ", "\t")),
    st.sampled_from(("1", "2", "2.5", "NaN", "1_0", "")),
    st.sampled_from(("", "", "", " 17", "\r", ' # {a="b c"} 1')),
)


def told(outcome):
    """What a parser said, but for the order of slots; NaN is NaN."""
    if isinstance(outcome, Failure):
        return outcome
    found, bad_lines = outcome
    return {key: repr(number) for key, number in found.items()}, bad_lines


@given(st.lists(st.lists(LINE, max_size=8), min_size=1, max_size=6), st.sampled_from((2, 4)), st.data())
@settings(max_examples=500, deadline=None)
def test_a_body_like_the_one_before_is_read_as_if_it_came_first(turns, max_series, data):
    """Each body, with one line of the one before changed, and each once more, whatever was good or refused before."""
    warm, before = Parser(Layout(), max_series=max_series), []
    for turn in turns:
        lines = turn
        if before and turn:
            at = data.draw(st.integers(0, len(before) - 1))
            lines = [*before[:at], turn[0], *before[at + 1 :]]
        body = "".join(f"{line}\n" for line in lines)
        fresh = told(read(body, max_series=max_series))
        assert [told(read(body, parser=warm)) for _ in range(2)] == [fresh, fresh]
        before = lines


def test_a_body_refused_once_read_as_far_as_it_went_is_refused_again():
    """The newer name comes last, so it is read twice; the second reading finds a third series, where two may be.

    With another number it is as large as it was.
    """
    parser = Parser(Layout(), max_series=2)
    shadowed = b'vllm:gpu_cache_usage_perc{engine="0"} 1\nvllm:kv_cache_usage_perc{engine="0"} 2\n'
    other = b'vllm:gpu_cache_usage_perc{engine="0"}\t1\nvllm:num_requests_running{engine="0"} 1\n'
    gone = b'vllm:prefix_cache_queries_total{engine="0"} 1\nvllm:gpu_prefix_cache_queries_total{engine="0"} 1\n'
    assert read(shadowed + gone, parser=parser)[1] == 0
    for running in (b"5", b"6", b"6"):
        body = b'vllm:prefix_cache_hits_total{engine="0"} ' + running + b"\n" + other
        assert parser.parse(body) == Failure(Reason.TOO_LARGE, "more than 2 series of ours")


def test_a_body_that_is_too_large_again_is_not_read(monkeypatch):
    """Its lines with other numbers are told by what stands before these; one of them malformed, it is read."""
    parser, body = (
        Parser(Layout(), max_series=2),
        Body(bare=True).running(1).waiting(2).set("vllm:num_preemptions_total", 3),
    )
    with monkeypatch.context() as unread:
        refused = parser.parse(body.text())
        unread.setattr(exposition, "parse_line", None)
        again = parser.parse(body.running(5).text())
    malformed = read(body.text().replace(b"} 5", b"} five"), parser=parser)

    assert refused == again == Failure(Reason.TOO_LARGE, "more than 2 series of ours")
    assert (len(malformed[0]), malformed[1]) == (2, 1)


def test_tabs_before_the_numbers_do_not_make_a_body_too_large():
    """Refused for three series where two may be; then two are left."""
    parser = Parser(Layout(), max_series=2)
    body = Body(bare=True).running(1).waiting(2).set("vllm:num_preemptions_total", 3).text().replace(b" ", b"\t")
    refused = parser.parse(body)
    found, _ = read(body.partition(b"\n")[2], parser=parser)

    assert isinstance(refused, Failure)
    assert len(found) == 2


def test_the_place_of_a_malformed_line_is_not_the_one_that_another_series_gets():
    """Running is malformed as places are given up, its own among them; back, it is itself and not what moved there."""
    layout = Layout()
    parser = Parser(layout)
    body = Body(bare=True).running(1).waiting(2)
    read(body.text(), parser=parser)
    read(body.text().replace(b"} 1", b"} one"), parser=parser)
    layout.keep([1])
    parser.keep([1])
    found, bad_lines = read(body.running(3).text(), parser=parser)

    assert {series: number for (_, series, _, _), number in found.items()} == {"running": 3, "waiting": 2}
    assert bad_lines == 0


@given(st.binary(max_size=200).map(lambda line: line.replace(b"\n", b"")), st.integers(0, 3))
@settings(max_examples=300, deadline=None)
def test_a_bad_line_never_spoils_the_others(line, position):
    """Whatever stands between good lines, they are read; at most one line is bad."""
    good = [RUNNING.encode(), NEW.encode(), b"# HELP a b\n"]
    body = b"".join([*good[:position], line + b"\n", *good[position:]])
    found, bad_lines = read(body)

    assert found[ZERO, "kv_usage", Part.VALUE, ()] == 0.75
    assert found[ZERO, "running", Part.VALUE, ()] == 1
    assert bad_lines <= 1


def test_a_steady_body_takes_the_fast_path_and_a_changed_value_is_seen():
    """Only lines that changed are read again, and a value that changes back is seen too."""
    body = Body().running(3)
    parser = Parser(Layout())
    seen = []
    for running in (3, 3, 4, 3):
        found, bad_lines = read(body.running(running).text(), parser=parser)
        seen.append(found[ZERO, "running", Part.VALUE, ()])
        assert bad_lines == 0

    assert seen == [3, 3, 4, 3]


GAUGE = 'vllm:num_requests_running{engine="0",model_name="m"}'


@pytest.mark.parametrize(
    ("before", "after", "running"),
    [
        (f"{GAUGE} 5 1000", f"{GAUGE} 5 2000", 5),
        (f'{GAUGE} 5 # {{a="b"}} 1', f'{GAUGE} 5 # {{a="b"}} 2', 5),
        (f"{GAUGE} 5", f"{GAUGE} 6 2000", 6),
        (f"{GAUGE} 5 1000", f"{GAUGE} 6", 6),
        (f"{GAUGE} 4", f"{GAUGE}5", 5),
        (f"{GAUGE} 5", "5", None),
        (f"{GAUGE} 5", f"{GAUGE} ", None),
        (f"{GAUGE} 5", f"{GAUGE} 1_0", None),
        (f"{GAUGE} 5", f"# {GAUGE} 6", None),
        ("# 5", f"{GAUGE} 6", 6),
        ("", f"{GAUGE} 6", 6),
        ("other 5", f"{GAUGE} 6", 6),
        (f"{GAUGE} 5", "other 6", None),
    ],
)
def test_one_line_that_changes_among_others_that_do_not(before, after, running):
    """Read as if it had always been so: timestamps, cuts, comments, another series in its place."""
    parser = Parser(Layout())
    others = Body().text().decode().partition("\n")[2]
    assert GAUGE not in others
    read(f"{others}{before}\n", parser=parser)
    found, _ = read(f"{others}{after}\n", parser=parser)
    assert found.get((ZERO, "running", Part.VALUE, ())) == running
