"""Clients take turns, whatever one of them sends, and none that leaves keeps a place."""

import asyncio

from kvasir_runtime.frontend.client_turns import ClientTurns


def test_clients_take_turns_and_each_keeps_its_order():
    async def served() -> list[str]:
        turns, order = ClientTurns(1), []
        first = asyncio.Event()

        async def work(client: str, name: str) -> None:
            async with turns.turn(client):
                order.append(name)
                await first.wait()

        tasks = [asyncio.create_task(work("greedy", f"greedy{number}")) for number in range(4)]
        tasks += [asyncio.create_task(work(client, client)) for client in ("a", "b")]
        await asyncio.sleep(0)
        first.set()
        await asyncio.gather(*tasks)
        return order

    assert asyncio.run(served()) == ["greedy0", "greedy1", "a", "b", "greedy2", "greedy3"]


def test_a_client_that_leaves_loses_nothing_for_the_others():
    async def served() -> list[str]:
        turns, order = ClientTurns(1), []

        async def work(name: str) -> None:
            async with turns.turn(name):
                order.append(name)

        async with turns.turn("holder"):
            tasks = [asyncio.create_task(work(name)) for name in ("leaves", "stays")]
            await asyncio.sleep(0)
            tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await work("later")
        return order

    assert asyncio.run(served()) == ["stays", "later"]


def test_a_place_that_comes_with_a_cancellation_goes_to_the_next():
    async def served() -> list[str]:
        turns, order = ClientTurns(1), []

        async def work(name: str) -> None:
            async with turns.turn(name):
                order.append(name)

        holder = turns.turn("holder")
        await holder.__aenter__()
        tasks = [asyncio.create_task(work(name)) for name in ("leaves", "stays")]
        await asyncio.sleep(0)
        await holder.__aexit__(None, None, None)
        tasks[0].cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        return order

    assert asyncio.run(served()) == ["stays"]
