"""The scheduler, a step at a time."""

from dataclasses import replace
from typing import Any

import pytest

from exporter.lab.profiles import Profile, Speculation
from exporter.lab.scheduler import Request, Scheduler, Step

SMALL = Profile(
    "small",
    weight_read_seconds=0.01,
    positions_per_second=1000,
    kv_tokens=41 * 16,
    max_num_seqs=8,
    max_num_batched_tokens=64,
    max_model_len=512,
)


def scheduler(**changes: Any) -> Scheduler:
    return Scheduler(replace(SMALL, **changes))


def request(number: int, prompt: int, output: int = 10, **fields: Any) -> Request:
    return Request(number, 0.0, prompt, output, **fields)


def step(engine: Scheduler) -> Step:
    found = engine.schedule(0.0)
    engine.complete(found)
    return found


def chunks(found: Step) -> dict[int, int]:
    return {request.id: positions for request, positions in found.prefills}


def test_a_prompt_is_computed_in_chunks_of_the_budget_and_then_gives_its_first_token() -> None:
    """150 tokens at a budget of 64 are chunks of 64, 64 and 22; the last samples a token."""
    engine = scheduler()
    prompt = request(1, 150)
    engine.add(prompt)
    assert [chunks(step(engine))[1] for _ in range(3)] == [64, 64, 22]
    assert prompt.generated == 1


def test_decodes_come_first_and_prompts_share_the_rest_in_order_of_arrival() -> None:
    """One decoding request takes 1 of 64; the next prompt 40 and the one after it the 23 left."""
    engine = scheduler()
    engine.add(request(1, 10))
    step(engine)
    engine.add(request(2, 40))
    engine.add(request(3, 40))
    found = step(engine)
    assert [decoding.id for decoding in found.decodes] == [1]
    assert chunks(found) == {2: 40, 3: 23}


def test_a_long_prompt_takes_no_more_than_its_threshold() -> None:
    engine = scheduler(long_prefill_token_threshold=16)
    engine.add(request(1, 100))
    engine.add(request(2, 100))
    assert chunks(step(engine)) == {1: 16, 2: 16}


def test_seats_are_limited() -> None:
    engine = scheduler(max_num_seqs=2)
    for number in range(4):
        engine.add(request(number, 5))
    step(engine)
    assert (len(engine.running), len(engine.waiting)) == (2, 2)


def test_a_finished_request_leaves_in_the_step_that_finishes_it() -> None:
    engine = scheduler()
    engine.add(request(1, 5, output=2))
    step(engine)
    found = engine.schedule(0.0)
    outputs, _ = engine.complete(found)
    assert [(done.id, done.gone) for done in outputs] == [(1, True)]
    assert (engine.running, engine.pool.usage) == ([], 0.0)


def full_cache(**changes: Any) -> tuple[Scheduler, Request, Request]:
    """Two requests of 304 tokens hold 38 of 40 blocks; after 16 more tokens each all 40 are full to the last slot."""
    engine = scheduler(max_num_batched_tokens=1024, **changes)
    first, second = request(1, 304, output=100), request(2, 304, output=100)
    engine.add(first)
    engine.add(second)
    for _ in range(1 + 16):
        step(engine)
    assert (engine.pool.usage, first.computed, second.computed) == (1.0, 320, 320)
    return engine, first, second


def test_preemption_takes_the_newest_and_admits_nobody() -> None:
    """The first request needs a 21st block: the second loses its own and goes to the head of the queue."""
    engine, first, second = full_cache()
    late = request(3, 5)
    engine.add(late)
    found = step(engine)
    assert (found.preempted, found.decodes, found.prefills) == ([second], [first], [])
    assert list(engine.waiting) == [second, late]
    assert (second.computed, second.preemptions, first.preemptions) == (0, 1, 0)


def test_a_request_that_is_the_newest_itself_preempts_itself() -> None:
    """The second grows to 21 blocks, a third of 304 tokens takes the last 19 and finds none for its 305th."""
    engine, first, second = full_cache()
    engine.abort(first)
    third = request(3, 304, output=100)
    engine.add(third)
    assert step(engine).prefills == [(third, 304)]
    found = step(engine)
    assert (found.preempted, found.decodes) == ([third], [second])


def test_a_resumed_request_finds_its_cached_blocks_and_recomputes_only_the_rest() -> None:
    """It had 320 tokens computed in 20 blocks; one was taken. 19 are found: 17 of its 321 are computed, 16 again."""
    engine, first, second = full_cache()
    step(engine)
    engine.abort(first)
    found = step(engine)
    assert (found.prefills, found.recomputed_tokens) == ([(second, 17)], 16)


def test_without_caching_a_resumed_request_recomputes_everything() -> None:
    """All 321 tokens are computed, 320 of them again."""
    engine, first, second = full_cache(prefix_caching=False)
    step(engine)
    engine.abort(first)
    found = step(engine)
    assert (found.prefills, found.recomputed_tokens) == ([(second, 321)], 320)


def test_a_prompt_waits_until_all_of_it_fits() -> None:
    """Of 40 blocks 30 are held: 200 tokens need 13. Without the reserve its first chunk is admitted."""
    for reserve, admitted in ((True, 0), (False, 1)):
        engine = scheduler(max_num_batched_tokens=512, reserve_full_prompt=reserve)
        engine.add(request(1, 470))
        step(engine)
        engine.profile = replace(engine.profile, max_num_batched_tokens=64)
        engine.add(request(2, 200))
        assert len(step(engine).prefills) == admitted


def test_a_shared_prefix_is_computed_once() -> None:
    """40 tokens are two full blocks and a half: the second request computes the 8 that are left."""
    engine = scheduler()
    for number in (1, 2):
        engine.add(request(number, 40, prefix_keys=("a", "b")))
        found = step(engine)
    assert chunks(found) == {2: 8}


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    """A prompt of exactly 20 blocks that was seen before hits 19 of them: 304 of 320, as measured on vLLM."""
    engine = scheduler(max_num_batched_tokens=512)
    keys = tuple(range(20))
    for number in (1, 2):
        again = request(number, 320, output=1, prefix_keys=keys)
        engine.add(again)
        step(engine)
    assert again.cached_tokens == 304


def test_a_paused_scheduler_goes_on_with_what_runs_and_admits_nobody() -> None:
    engine = scheduler()
    engine.add(request(1, 5))
    step(engine)
    engine.paused = True
    engine.add(request(2, 5))
    found = step(engine)
    assert (len(found.decodes), found.prefills) == (1, [])


def test_an_aborted_request_is_forgotten_whether_it_waits_runs_or_is_in_a_step() -> None:
    engine = scheduler(max_num_seqs=1)
    running, waiting = request(1, 5), request(2, 5)
    engine.add(running)
    engine.add(waiting)
    found = engine.schedule(0.0)
    engine.abort(running)
    engine.abort(waiting)
    engine.abort(waiting)
    assert engine.complete(found) == ([], None)
    assert (engine.running, list(engine.waiting), engine.pool.usage) == ([], [], 0.0)


@pytest.mark.parametrize(("prompt", "output"), [(0, 1), (1, 0), (400, 113)])
def test_what_can_never_fit_is_refused(prompt: int, output: int) -> None:
    """512 tokens is the longest sequence of this model."""
    with pytest.raises(ValueError, match="token"):
        scheduler().add(request(1, prompt, output))


def test_certain_drafts_give_gamma_plus_one_tokens_a_step() -> None:
    """Gamma 3, alpha 1: 4 positions and 4 tokens a step; 9 tokens are 1 of the prefill, 4 and 4."""
    engine = scheduler(speculation=Speculation(3, 1.0))
    drafted = request(1, 5, output=9)
    engine.add(drafted)
    step(engine)
    found = engine.schedule(0.0)
    _, verification = engine.complete(found)
    assert (found.decode_positions, drafted.new_tokens) == (4, 4)
    assert verification is not None
    assert (verification.drafts, verification.draft_tokens, verification.accepted_tokens) == (1, 3, 3)
    assert verification.accepted_per_position == [1, 1, 1]
    step(engine)
    assert drafted.gone


def test_hopeless_drafts_give_one_token_a_step() -> None:
    engine = scheduler(speculation=Speculation(3, 0.0))
    drafted = request(1, 5)
    engine.add(drafted)
    step(engine)
    found = engine.schedule(0.0)
    _, verification = engine.complete(found)
    assert drafted.new_tokens == 1
    assert verification is not None
    assert verification.accepted_tokens == 0


def test_speculation_keeps_two_gamma_plus_one_slots() -> None:
    """After 26 tokens, gamma 3: positions 27 to 30 and slots for 3 more drafts, and the 33rd is in a third block."""
    for gamma, blocks in ((3, 3), (2, 2)):
        engine = scheduler(speculation=Speculation(gamma, 0.0))
        drafted = request(1, 26)
        engine.add(drafted)
        step(engine)
        engine.schedule(0.0)
        assert len(drafted.blocks) == blocks


def test_a_budget_that_ends_cuts_the_last_draft() -> None:
    """Budget 16 at gamma 4: three requests verify 5 positions each, the fourth 1, with no draft left to accept."""
    engine = scheduler(speculation=Speculation(4, 1.0), max_num_batched_tokens=16)
    for number in range(4):
        engine.add(request(number, 4))
    step(engine)
    found = engine.schedule(0.0)
    outputs, verification = engine.complete(found)
    assert [done.new_tokens for done in outputs] == [5, 5, 5, 1]
    assert verification is not None
    assert (verification.drafts, verification.draft_tokens) == (3, 12)
