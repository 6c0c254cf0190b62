"""The sidecar beside an engine that breaks at random: a few acts. ``make chaos`` plays 200."""

from tests.chaos.rig import ACTS, hang, lie, outage, play, restart, rig, sleep


async def test_a_few_acts() -> None:
    """Each of the acts that change most, then three at random; what must hold is in the rig."""
    async with rig(seed=3) as found:
        for act in (lie, sleep, restart):
            await act(found)
            await found.check()
        await play(found, 3, without=frozenset({hang, outage}))

        assert found.counts()["generation_tokens_total"] > 0
        assert found.restarts >= 1
        assert set(found.acts) <= {act.__name__ for act in ACTS}
